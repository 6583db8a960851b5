"""Scripts of the fork's derivation: how many compilers at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fork_tree.conftest import ROOT

SCRIPTS = ROOT / "nix" / "packages" / "vllm-fork"
GIB = 1 << 20


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("cores", "available_gib", "jobs"),
    [(20, 119, 19), (20, 128, 20), (8, 119, 8), (20, 11.9, 1), (20, 3, 1), (1, 119, 1)],
)
def test_memory_bounds_the_number_of_compilers(tmp_path: Path, cores: int, available_gib: float, jobs: int) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 131072000 kB\nMemAvailable:   {int(available_gib * GIB)} kB\nCached: 1 kB\n")
    done = run("max-jobs.sh", cores, meminfo)
    assert (done.returncode, done.stdout) == (0, f"{jobs}\n")


def test_memory_that_is_not_told_stops(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    done = run("max-jobs.sh", 8, tmp_path / "meminfo")
    assert done.returncode == 1
    assert done.stderr.startswith("error: memory-unknown: ")


def test_number_on_this_machine_is_at_least_one() -> None:
    assert 1 <= int(run("max-jobs.sh", 4).stdout) <= 4
