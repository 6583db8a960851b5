"""What the installer refuses before it writes anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tiny_wheels import MACHINE, PYTHON, SYSTEM, call, install, lock_of, made, write_wheel

OTHER_PYTHON = "cp310"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole and to be left so."""
    folder = tmp_path_factory.mktemp("made")
    brush = write_wheel(folder / "index", "brush")
    return made(folder / "house", lock_of([brush]), [write_wheel(folder / "built", "easel", requires=["brush"])])


def refused(house: Path, target: Path, *options: str) -> str:
    done = install(house, *options, target)
    assert done.returncode == 1
    assert done.stdout == ""
    assert not target.exists() or not target.is_dir()
    assert "Traceback" not in done.stderr
    return done.stderr


def test_whole_wheelhouse_passes_and_check_writes_nothing(house: Path, tmp_path: Path) -> None:
    before = sorted(house.rglob("*"))
    done = install(house, "--check", tmp_path / "environment")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "everything is in order; nothing was installed\n"
    assert not (tmp_path / "environment").exists()
    assert sorted(house.rglob("*")) == before


def made_for(folder: Path, **fields: str) -> Path:
    wheel = write_wheel(folder / "built", "easel")
    return made(folder / "house", lock_of([], **fields), [wheel], system=fields.get("system", SYSTEM))


def test_wrong_machine(tmp_path: Path) -> None:
    message = refused(made_for(tmp_path, system="riscv64-linux"), tmp_path / "environment")
    assert "error: machine: these wheels are for another machine\n  expected: riscv64-linux\n" in message
    assert f"found: {MACHINE}-linux" in message


def test_wrong_python(tmp_path: Path) -> None:
    message = refused(made_for(tmp_path, python=OTHER_PYTHON), tmp_path / "environment")
    assert f"error: python: these wheels are for another Python\n  expected: {OTHER_PYTHON}\n" in message
    assert f"found: {PYTHON}\n" in message
    assert "hint: sh install.sh --python python3.10 DIR" in message


MANIFEST = {"system": SYSTEM, "python": PYTHON, "cuda": "13.0"}
VERSION = f"3.{sys.version_info.minor}"


def test_python_without_its_headers() -> None:
    code = "import checks, sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\nchecks.check_machine(manifest)"
    message = call(code, manifest=MANIFEST).stderr
    assert "error: python-headers: kernels are compiled at run time, and there is no /nowhere/Python.h" in message
    assert f"hint: sudo apt install python{VERSION}-dev" in message
    assert call(code, manifest={**MANIFEST, "cuda": None}).returncode == 0


def test_python_without_virtual_environments() -> None:
    code = "import checks\nsys.modules['ensurepip'] = None\nchecks.check_machine(manifest)"
    message = call(code, manifest=MANIFEST).stderr
    assert "error: venv-missing: this Python makes no virtual environments" in message
    assert f"hint: sudo apt install python{VERSION}-venv" in message


def test_python_that_is_not_there(house: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(house / "install.sh"), "--python", "python9.9", str(tmp_path / "environment")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"error: python-missing: these wheels are for Python {VERSION}, and there is no python9.9" in done.stderr
    assert f"hint: sudo apt install python{VERSION} python{VERSION}-venv python{VERSION}-dev" in done.stderr


def test_python_is_looked_for_by_the_version_of_the_wheels(house: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / f"python{VERSION}"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(house / "install.sh"), "there"], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout == f"{house}/install.py there\n"


def test_python_without_a_name_is_wrong_usage(house: Path) -> None:
    done = subprocess.run(["sh", str(house / "install.sh"), "--python"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sh install.sh [--python PYTHON] [--check] DIR" in done.stderr


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


WHEEL = "wheels/easel-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("damage", "lines"),
    [
        (lambda house: flip(house / WHEEL), ["1 of the wheelhouse's files", f"{WHEEL}: ", "bytes with another hash"]),
        (lambda house: (house / WHEEL).unlink(), [f"{WHEEL}: missing"]),
        (lambda house: (house / "NOTICE").unlink(), ["NOTICE: missing"]),
        (lambda house: flip(house / "requirements.txt"), ["requirements.txt: "]),
        (lambda house: (house / "SHA256SUMS").unlink(), ["SHA256SUMS: missing"]),
        (
            lambda house: shutil.copy(house / WHEEL, house / "wheels" / "brush-9-py3-none-any.whl"),
            ["wheels/brush-9-py3-none-any.whl: not in SHA256SUMS"],
        ),
        (
            lambda house: (flip(house / WHEEL), (house / "NOTICE").unlink()),
            ["2 of the wheelhouse's files", "NOTICE: missing", f"{WHEEL}: "],
        ),
    ],
    ids=["wheel changed", "wheel lost", "notice lost", "requirements changed", "sums lost", "wheel added", "two"],
)
def test_files_that_differ(house: Path, tmp_path: Path, damage: Callable[[Path], object], lines: list[str]) -> None:
    damaged = Path(shutil.copytree(house, tmp_path / "house"))
    damage(damaged)
    message = refused(damaged, tmp_path / "environment")
    assert message.startswith("error: files-differ: ")
    assert all(line in message for line in lines), message
    assert "hint: copy the wheelhouse again" in message


@pytest.mark.parametrize("name", ["wheelhouse.json", "install.py"])
def test_lost_part_of_the_installer(house: Path, tmp_path: Path, name: str) -> None:
    damaged = Path(shutil.copytree(house, tmp_path / "house"))
    (damaged / name).unlink()
    message = refused(damaged, tmp_path / "environment")
    assert f"error: files-differ: {damaged} is not a whole wheelhouse" in message


def test_read_only_wheelhouse_passes(house: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(house, tmp_path / "house"))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert install(copy, "--check", tmp_path / "environment").returncode == 0
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)


def test_target_with_something_in_it(house: Path, tmp_path: Path) -> None:
    target = tmp_path / "environment"
    target.mkdir()
    (target / "thesis.tex").touch()
    done = install(house, target)
    assert done.returncode == 1
    assert f"error: target-in-use: {target} is not empty\n\nhint: another folder, or: rm -r {target}" in done.stderr
    assert [path.name for path in target.iterdir()] == ["thesis.tex"]


def test_target_that_is_or_lies_in_a_file(house: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert f"error: target-in-use: {file} is a file" in refused(house, file)
    assert f"error: target-in-use: {file} is a file" in refused(house, file / "environment")


def test_target_whose_name_no_environment_can_have(house: Path, tmp_path: Path) -> None:
    assert "error: target-name: no environment can lie in " in refused(house, tmp_path / "a:b")


def test_target_that_cannot_be_written(house: Path) -> None:
    assert "error: target-not-writable: " in refused(house, Path("/proc/sys/environment"))


def test_full_disk(tmp_path: Path) -> None:
    lock = lock_of([write_wheel(tmp_path / "index", "brush")])
    lock["systems"][SYSTEM]["brush"]["size"] = 10**15
    house = made(tmp_path / "house", lock, [write_wheel(tmp_path / "built", "easel")])
    message = refused(house, tmp_path / "not" / "yet" / "there")
    assert f"error: disk-full: too little room for {tmp_path}/not/yet/there\n  expected: " in message
    assert f"GiB on {tmp_path}\n" in message
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(
    ("symbol", "what", "expected"),
    [("GLIBC_9.99", "C library", "GLIBC 9.99"), ("GLIBCXX_9.9.9", "C++ library", "GLIBCXX 9.9.9")],
)
def test_system_library_that_is_too_old(tmp_path: Path, symbol: str, what: str, expected: str) -> None:
    wheel = write_wheel(tmp_path / "built", "easel", files={"in/easel.so": b"\0" + symbol.encode() + b"\0"})
    house = made(tmp_path / "house", lock_of([]), [wheel])
    message = refused(house, tmp_path / "environment")
    name, version = expected.split()
    assert f"error: system-library: the wheels need a newer {what} than this system has" in message
    assert f"  expected: {expected}\n  found: {name} " in message
    assert json.loads((house / "wheelhouse.json").read_text())["needs"] == {name: version}


def test_system_libraries_of_this_machine_are_found(tmp_path: Path) -> None:
    content = b"\0GLIBC_2.17\0GLIBCXX_3.4.9\0"
    wheel = write_wheel(tmp_path / "built", "easel", files={"in/easel.so": content})
    house = made(tmp_path / "house", lock_of([]), [wheel])
    assert install(house, "--check", tmp_path / "environment").returncode == 0
