"""Scripts of the fork's derivation: applying patches, how many compilers at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fork_tree.conftest import ROOT

SCRIPTS = ROOT / "nix" / "packages" / "vllm-fork"
GREETING = """--- a/vllm/greeting.py
+++ b/vllm/greeting.py
@@ -1,5 +1,5 @@
 one
 two
-three
+THREE
 four
 five
"""
GIB = 1 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "greeting.py").write_text("one\ntwo\nthree\nfour\nfive\n")
    return folder


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def patch(folder: Path, name: str, text: str = GREETING) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_patches_are_applied_in_the_given_order(tree: Path, tmp_path: Path) -> None:
    second = GREETING.replace("-three", "-THREE").replace("+THREE", "+last")
    done = run("apply-patches.sh", tree, patch(tmp_path, "b.patch"), patch(tmp_path, "a.patch", second))
    assert done.stdout == "applied b.patch\napplied a.patch\n"
    assert (tree / "vllm" / "greeting.py").read_text() == "one\ntwo\nlast\nfour\nfive\n"
    assert sorted(path.name for path in (tree / "vllm").iterdir()) == ["greeting.py"]


def test_no_patch_changes_nothing(tree: Path) -> None:
    done = run("apply-patches.sh", tree)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (GREETING.replace("-three", "-another"), "Hunk #1 FAILED at 1"),
        # Context that differs is what fuzz would forgive.
        (GREETING.replace(" one\n", " zero\n"), "Hunk #1 FAILED at 1"),
        (GREETING.replace("greeting.py", "missing.py"), "can't find file to patch"),
        ("no patch at all\n", "Only garbage was found in the patch input"),
    ],
)
def test_patch_that_does_not_fit_stops_with_its_name(tree: Path, tmp_path: Path, damage: str, found: str) -> None:
    before = (tree / "vllm" / "greeting.py").read_text()
    path = patch(tmp_path, "0003-change-greeting.patch", damage)
    done = run("apply-patches.sh", tree, path, patch(tmp_path, "0004-never-reached.patch"))
    assert done.returncode == 1
    assert "error: patch-does-not-apply: 0003-change-greeting.patch does not fit this tree of vLLM" in done.stderr
    assert found in done.stderr
    assert "hint: nix run .#serve-upstream" in done.stderr
    assert "applied" not in done.stdout
    assert (tree / "vllm" / "greeting.py").read_text() == before


def test_patch_that_does_not_fit_names_the_files_it_changes(tree: Path, tmp_path: Path) -> None:
    two = GREETING.replace("-three", "-another") + GREETING.replace("greeting.py", "other.py\t2026-01-01 00:00:00")
    done = run("apply-patches.sh", tree, patch(tmp_path, "two.patch", two))
    assert "it changes vllm/greeting.py vllm/other.py" in done.stderr


def test_patch_that_is_already_in_the_tree_stops(tree: Path, tmp_path: Path) -> None:
    path = patch(tmp_path, "twice.patch")
    done = run("apply-patches.sh", tree, path, path)
    assert done.stdout == "applied twice.patch\n"
    assert "Reversed (or previously applied) patch detected" in done.stderr
    assert done.returncode == 1


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
