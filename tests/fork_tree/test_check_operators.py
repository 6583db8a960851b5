"""The check that compiled extensions load and register what vLLM calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fork_tree.conftest import ROOT

SCRIPT = ROOT / "tools" / "fork_tree" / "check_operators.py"


def check(folder: Path, *operators: str) -> subprocess.CompletedProcess[str]:
    (folder / "vllm").mkdir(exist_ok=True)
    return subprocess.run([sys.executable, str(SCRIPT), str(folder), *operators], capture_output=True, text=True)


def test_registered_operator_is_found_and_another_is_named(tmp_path: Path) -> None:
    done = check(tmp_path, "aten.add", "_C.no_such_operator")
    assert done.returncode == 1
    assert done.stderr == f"error: operator-missing: no extension in {tmp_path} registers _C.no_such_operator\n"
    assert check(tmp_path, "aten.add").returncode == 0


def test_extension_that_cannot_be_loaded_fails(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "_C_stable_libtorch.abi3.so").write_text("no library")
    done = check(tmp_path, "aten.add")
    assert done.returncode != 0
    assert "_C_stable_libtorch.abi3.so" in done.stderr


def test_extension_that_needs_the_driver_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "cumem_allocator_C.abi3.so").write_text("no library")
    assert check(tmp_path, "aten.add").returncode == 0
