"""The table "State by release" of patches/README.md against what the tool finds in the released sources."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from patches.conftest import CHECK, PATCHES, ROOT
from support.releases import ARCHIVES, unpack

HEADING = "## State by release"
#: What a cell says, and the verdict that it stands for; `-` is a mismatch in a release that has none of the code.
CELLS = {"applies": "applies", "there": "there", "no": "mismatch", "-": "mismatch"}
SERIES = [line for line in (PATCHES / "series").read_text().splitlines() if line and not line.startswith("#")]
#: Files that the patches change or look into.
NAMED = sorted(
    {
        file
        for name in SERIES
        for file in re.findall(r'(?m)^--- a/(\S+)|(\S+) has "', (PATCHES / name).read_text().replace("\n ", " "))
        for file in file
        if file
    }
)


def table(text: str) -> dict[str, dict[str, str]]:
    """Cells by number of the patch and release."""
    _, heading, rest = text.partition(f"{HEADING}\n")
    assert heading, f"patches/README.md has no {HEADING}"
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    first, rule, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert first[0] == "patch"
    assert set("".join(rule)) == {"-"}
    assert all(len(row) == len(first) for row in rows)
    cells = {re.sub(r"[^\d].*", "", row[0].lstrip("[`")): dict(zip(first[1:], row[1:], strict=True)) for row in rows}
    assert len(cells) == len(rows), "a patch has two rows"
    return cells


@pytest.fixture(scope="module")
def stated() -> dict[str, dict[str, str]]:
    return table((ROOT / "patches" / "README.md").read_text(encoding="utf-8"))


def test_every_patch_has_a_row_and_every_release_a_column(stated: dict[str, dict[str, str]]) -> None:
    assert list(stated) == [name[:4] for name in SERIES]
    for cells in stated.values():
        assert list(cells) == list(ARCHIVES)
        assert set(cells.values()) <= set(CELLS)


@pytest.mark.parametrize("version", ARCHIVES)
def test_release_is_as_the_table_says(version: str, stated: dict[str, dict[str, str]], tmp_path: Path) -> None:
    tree = unpack(version, tmp_path, NAMED)
    command = [sys.executable, str(CHECK), "--tree", str(tree), "--json"]
    # Patches that do not fit are left out by the tool itself, so later ones are judged without them.
    done = subprocess.run(command, capture_output=True, text=True)
    found = {one["patch"][:4]: one["verdict"] for one in json.loads(done.stdout)}
    assert {number: CELLS[cells[version]] for number, cells in stated.items()} == found, done.stderr


def test_table_is_read_as_it_stands() -> None:
    text = f"# x\n\n{HEADING}\n\n| patch | 1 | 2 |\n| --- | --- | --- |\n| `0001-a-b` | no | - |\n\n## y\n\n| z |\n"
    assert table(text) == {"0001": {"1": "no", "2": "-"}}
