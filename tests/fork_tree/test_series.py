"""The reader of a patch series, in Nix."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fork_tree.conftest import ROOT
from support.programs import require_program


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-instantiate")


def evaluate(expression: str) -> subprocess.CompletedProcess[str]:
    series = f"import {ROOT}/nix/series.nix {{ lib = import {ROOT}/tests/nixpkgs-stub/lib; }}"
    command = ["nix-instantiate", "--eval", "--strict", "--json", "--expr", f"let series = {series}; in {expression}"]
    return subprocess.run(command, capture_output=True, text=True)


def select(text: str, present: list[str]) -> subprocess.CompletedProcess[str]:
    files = " ".join(json.dumps(name) for name in present)
    return evaluate(f'series.select {{ folder = "patches/vllm"; text = {json.dumps(text)}; present = [ {files} ]; }}')


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("# nothing yet\n\n", []),
        ("0001-a.patch\n0002-b.patch\n", ["0001-a.patch", "0002-b.patch"]),
        ("0002-b.patch\r\n# why\n0001-a.patch", ["0002-b.patch", "0001-a.patch"]),
        ("0001-a.patch  \n0002-b.patch\t\n", ["0001-a.patch", "0002-b.patch"]),
    ],
)
def test_order_is_that_of_the_series(text: str, names: list[str]) -> None:
    done = select(text, ["series", *names])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == names


@pytest.mark.parametrize(
    ("text", "present", "sentence"),
    [
        (
            "0001-a.patch",
            ["series"],
            "patches/vllm/series lists 0001-a.patch, which patches/vllm does not have; add the file or remove the line",
        ),
        (
            "# 0001-a.patch",
            ["series", "0001-a.patch", "0002-b.patch"],
            "patches/vllm has 0001-a.patch, 0002-b.patch, which patches/vllm/series does not list; "
            "add a line or remove the file",
        ),
        (
            "0001-a.diff",
            ["0001-a.diff"],
            "series lists 0001-a.diff; every line is the name of one file that ends in .patch",
        ),
        (" 0001-a.patch", ["0001-a.patch"], "series lists  0001-a.patch, which patches/vllm does not have"),
        (
            "a.patch\nb.patch\na.patch",
            ["a.patch", "b.patch"],
            "series lists a.patch more than once; a patch applies once",
        ),
    ],
)
def test_series_and_folder_that_disagree_stop_evaluation(text: str, present: list[str], sentence: str) -> None:
    done = select(text, present)
    assert done.returncode != 0
    assert sentence in done.stderr


def test_patches_of_the_repository_are_consistent() -> None:
    done = evaluate(f"map (patch: patch.name) (series.read {ROOT}/patches/vllm)")
    assert done.returncode == 0, done.stderr
    on_disk = {path.name for path in (ROOT / "patches" / "vllm").glob("*.patch")}
    assert set(json.loads(done.stdout)) == on_disk


def test_folder_is_read_with_its_paths(tmp_path: Path) -> None:
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "series").write_text("0001-a.patch\n")
    (folder / "0001-a.patch").write_text("")
    done = evaluate(f"map (patch: toString patch.path) (series.read {folder})")
    assert json.loads(done.stdout) == [str(folder / "0001-a.patch")]
