"""Trees of vLLM as released, patched and damaged, and programs that run its own code in one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.releases import unpack
from support.triton_interpreter import triton

ROOT = Path(__file__).parents[2]
PATCHES = ROOT / "patches" / "vllm"
CHECK = ROOT / "tools" / "check_patches.py"
#: Patches that bring a defect back which a release no longer has.
DAMAGE = Path(__file__).parent / "data"
_PROGRAMS = Path(__file__).parent / "programs"
#: What a patch may change and what running the code needs.
_PARTS = ("vllm/", "csrc/", "requirements/", "tests/v1/attention/")

#: Runs a program of tests/patches/programs in a tree (None: the installed vLLM) and returns what it measured.
Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tree of a release, unpacked once; nothing may change it."""
    unpacked: dict[str, Path] = {}

    def tree(version: str) -> Path:
        if version not in unpacked:
            unpacked[version] = unpack(version, tmp_path_factory.mktemp("release"), _PARTS)
        return unpacked[version]

    return tree


@pytest.fixture(scope="session")
def patched(release: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a release with the whole series applied where it is not there already."""
    made: dict[str, Path] = {}

    def tree(version: str) -> Path:
        if version not in made:
            made[version] = copied(release(version), tmp_path_factory.mktemp("patched"))
            apply_series(made[version])
        return made[version]

    return tree


@pytest.fixture(scope="session")
def damaged(release: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A copy of a release with defects back that it no longer has.

    `repair` names the patches that are applied to it afterwards, by their numbers.
    """
    made: dict[tuple[str, tuple[str, ...], tuple[str, ...]], Path] = {}

    def tree(version: str, *damages: str, repair: tuple[str, ...] = ()) -> Path:
        key = (version, damages, repair)
        if key not in made:
            made[key] = copied(release(version), tmp_path_factory.mktemp("damaged"))
            for damage in damages:
                source = DAMAGE / f"{damage}.patch"
                command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--input", str(source)]
                subprocess.run(command, cwd=made[key], check=True, capture_output=True)
            if repair:
                apply_series(made[key], *repair)
        return made[key]

    return tree


def apply_series(tree: Path, *only: str) -> None:
    """Apply every patch of the series, or of those named, that is not there already."""
    named = [option for one in only for option in ("--only", one)]
    command = [sys.executable, str(CHECK), "--tree", str(tree), "--apply", *named]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def copied(tree: Path, folder: Path) -> Path:
    return Path(shutil.copytree(tree, folder / tree.name))


@pytest.fixture(scope="session")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Results are kept: the same program in the same tree with the same arguments runs once a session."""
    kept: dict[tuple[str, str, str], dict[str, Any]] = {}
    hosts: dict[Path | None, _Host] = {}

    def run(program: str, tree: Path | None, *, alone: bool = False, **arguments: object) -> dict[str, Any]:
        """`alone` starts a process of its own: for programs that need Triton or vLLM not yet imported."""
        given = json.dumps(arguments, sort_keys=True)
        key = (program, str(tree), given)
        if key not in kept:
            answer = tmp_path_factory.mktemp("measured") / "answer.json"
            if alone:
                code, log = _start(program, tree, answer, given)
            else:
                host = hosts.get(tree) or hosts.setdefault(tree, _Host(tree))
                code, log = host.run(program, answer, given)
            assert code == 0, f"{program} in {tree} ended with {code}:\n{log[-3000:]}"
            kept[key] = json.loads(answer.read_text())
        return kept[key]

    yield run
    for host in hosts.values():
        host.close()


def _environment(tree: Path | None) -> dict[str, str]:
    path = [str(_PROGRAMS), *([str(tree)] if tree else []), str(triton())]
    # One thread: a pool of threads does not survive a fork.
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _start(program: str, tree: Path | None, answer: Path, given: str) -> tuple[int, str]:
    command = [sys.executable, str(_PROGRAMS / f"{program}.py"), str(answer), given]
    done = subprocess.run(command, env=_environment(tree), capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


class _Host:
    """A process with the vLLM of a tree imported, of which each program is a fork (programs/forked.py)."""

    def __init__(self, tree: Path | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAMS / "forked.py")],
            env=_environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, answer: Path, given: str) -> tuple[int, str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log = answer.with_name("log.txt")
        order = {"program": str(_PROGRAMS / f"{program}.py"), "answer": str(answer), "log": str(log)}
        self.process.stdin.write(json.dumps(order | {"arguments": given}) + "\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline().strip()
        return int(code or -1), log.read_text() if log.exists() else "no output: vLLM could not be imported"

    def close(self) -> None:
        """It holds nothing that has to be put away, and leaving takes seconds."""
        self.process.kill()
        self.process.communicate()
