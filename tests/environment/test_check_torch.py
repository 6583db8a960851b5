"""The build of torch in an environment: the pinned one and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.programs import require_program
from support.tiny_wheels import write_wheel

TOOL = Path(__file__).parents[2] / "tools" / "environment" / "check_torch.py"


def check(site: Path, version: str, cuda: str) -> subprocess.CompletedProcess[str]:
    file = site / "torch" / "version.py"
    file.parent.mkdir()
    lines = [f"__version__ = {version!r}", "debug = False", f"cuda: Optional[str] = {cuda}"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run(site)


def run(site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), str(site), "--torch", "2.13.0", "--cuda", "13.0"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_pinned_build_passes(tmp_path: Path) -> None:
    assert check(tmp_path, "2.13.0+cu130", "'13.0'").returncode == 0


@pytest.mark.parametrize(
    ("version", "cuda", "found"),
    [
        ("2.13.0+cpu", "None", "2.13.0+cpu, CUDA none"),
        ("2.13.0+cu128", "'12.8'", "2.13.0+cu128, CUDA 12.8"),
        ("2.14.0+cu130", "'13.0'", "2.14.0+cu130, CUDA 13.0"),
    ],
)
def test_other_build_is_refused_with_both_builds_named(tmp_path: Path, version: str, cuda: str, found: str) -> None:
    done = check(tmp_path, version, cuda)
    assert done.returncode == 1
    assert "error: torch-build" in done.stderr
    assert "expected: 2.13.0+cu130, CUDA 13.0" in done.stderr
    assert f"found:    {found}" in done.stderr
    assert "tools/locks/refresh.py" in done.stderr


def test_missing_torch_is_named(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert "error: torch-missing" in done.stderr


def test_wheel_of_torch_for_the_cpu_is_refused_in_an_environment_made_of_it(tmp_path: Path) -> None:
    require_program("patchelf")
    version = b"from typing import Optional\n__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n"
    wheel = write_wheel(tmp_path, "torch", "2.13.0", files={"torch/__init__.py": b"", "torch/version.py": version})
    prefix = tmp_path / "environment"
    command = [sys.executable, str(TOOL.with_name("assemble.py")), "--prefix", str(prefix), "--python", sys.executable]
    subprocess.run([*command, "--no-compile", "--wheels", str(wheel)], check=True)
    done = run(next(prefix.glob("lib/python*/site-packages")))
    assert done.returncode == 1
    assert "found:    2.13.0+cpu, CUDA none" in done.stderr
