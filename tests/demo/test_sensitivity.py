"""The canary lets 2 bits pass and catches damage: the part of docs/canary.md that is repeated on every run.

Through `tools/demo/table.py`, which judges every row and exits with 1 when one is not as it should be.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "tools" / "demo" / "table.py"


def table(*arguments: str) -> list[str]:
    result = subprocess.run([sys.executable, TABLE, *arguments], capture_output=True, text=True, timeout=1100)
    assert result.returncode == 0, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if line.startswith("|")][2:]


@pytest.mark.timeout(1200)
def test_two_bits_pass() -> None:
    rows = table("--bits", "2", "--no-damages")
    assert len(rows) == 1
    assert rows[0].endswith("| passes |")


@pytest.mark.timeout(1200)
def test_every_damage_is_caught() -> None:
    rows = table("--bits")
    verdicts = {row.split("|")[1].strip(): row.split("|")[-2].strip() for row in rows}
    assert verdicts.pop("the demo pack") == "passes"
    assert set(verdicts.values()) == {"fails"}
    for damage in (
        "routed experts zeroed",
        "wrong codebook",
        "no tile permutation",
        "suh left out",
        "gate and up swapped",
    ):
        assert any(name.startswith(damage) for name in verdicts)
    assert sum("zeroed" in name and name.startswith("expert") for name in verdicts) == 16
    assert sum(name.startswith("lowest bit plane") for name in verdicts) == 2
