"""The command on the real files, and on a copy of them that was tampered with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from runtime_files import ROOT, RUNTIMES, read

CHECK = ROOT / "tools/locks/check.py"
FILES = ("python/src/glm53_exl3/pins.json", "python/pyproject.toml")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "nix/locks", tmp_path / "nix/locks")
    return tmp_path


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def lock_of(root: Path, runtime: str) -> dict[str, Any]:
    return json.loads((root / f"nix/locks/{runtime}.json").read_text(encoding="utf-8"))


def test_the_locks_of_the_repository_are_right(copy: Path) -> None:
    result = check(copy)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "fork, upstream, demo agree with pins.json and are complete" in result.stdout


def test_a_flipped_hash_fails_the_command_and_is_its_first_line(copy: Path) -> None:
    path = copy / "nix/locks/upstream.json"
    text = path.read_text(encoding="utf-8")
    good = lock_of(copy, "upstream")["systems"]["aarch64-linux"]["torch"]["hash"]
    path.write_text(text.replace(good, good[:-4] + "AAA="), encoding="utf-8")
    result = check(copy)
    assert result.returncode == 1
    assert result.stdout.startswith(f"bytes: upstream, aarch64-linux: torch 2.13.0: {good[:-4]}AAA=, pins.json has")


def test_a_new_dependency_of_the_plugin_makes_every_lock_stale(copy: Path) -> None:
    path = copy / "python/pyproject.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('dependencies = ["typer', 'dependencies = ["zstandard", "typer'), encoding="utf-8")
    lines = check(copy).stdout.splitlines()
    for runtime in RUNTIMES:
        assert f"stale: {runtime}: requirements are not those of the .toml; run tools/locks/refresh.py" in lines
        assert any(line.startswith(f"requirement: {runtime}, ") and "zstandard" in line for line in lines)


def test_an_entry_that_stands_twice_is_refused(copy: Path) -> None:
    path = copy / "nix/locks/demo.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"systems": {', '"systems": {"aarch64-linux": {},', 1), encoding="utf-8")
    result = check(copy)
    assert result.returncode == 1
    assert "demo.json: aarch64-linux is there twice" in result.stderr


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_lock_has_no_address_in_it(runtime: str) -> None:
    assert "://" not in (ROOT / f"nix/locks/{runtime}.json").read_text(encoding="utf-8")


def test_the_known_conflict_of_the_fork_is_stated() -> None:
    exceptions = {line.requires: line for line in read("fork").exceptions}
    assert "measured" in exceptions["flashinfer-python==0.6.18"].reason
    assert lock_of(ROOT, "fork")["systems"]["aarch64-linux"]["flashinfer-python"]["version"] == "0.6.18rc10"


def test_the_demo_runs_the_versions_that_the_tests_run() -> None:
    lines = (ROOT / "tools/requirements/cpu.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(";")[0].strip().split("==") for line in lines if "==" in line and line[0] != "#"]
    tested = {name.lower().replace("_", "-").replace(".", "-"): version for name, version in pairs}
    for locked in lock_of(ROOT, "demo")["systems"].values():
        differing = {n: e["version"] for n, e in locked.items() if tested.get(n, e["version"]) != e["version"]}
        assert differing == {}
        assert len(set(locked) & set(tested)) > 130
