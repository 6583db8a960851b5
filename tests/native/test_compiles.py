"""The native kernels compile for the GPUs they are meant for, by CUDA's compiler, without a GPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from extension.conftest import toolkit

__all__ = ["toolkit"]

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "python" / "csrc" / "native"
VARIANTS = 10


def compiled(arch: str, toolkit: Path, folder: Path) -> dict[str, int]:
    """Bytes that each variant spills."""
    done = subprocess.run(
        [
            *(toolkit / "bin" / "nvcc", "-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Xptxas", "-v"),
            *(f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-I{SOURCES}", f"-I{toolkit / 'include'}"),
            *("-c", HERE / "variants.cu", "-o", folder / "variants.o"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores", done.stderr, re.DOTALL)
    spilled = {name: int(stores) for name, stores in found if re.search(r"(gate_up|down|gate_up_all|down_all)IL", name)}
    assert len(spilled) == VARIANTS
    return spilled


def test_no_variant_spills_on_a_gb10(toolkit: Path, tmp_path: Path) -> None:
    assert set(compiled("121a", toolkit, tmp_path).values()) == {0}


def test_the_oldest_gpu_spills_a_few_bytes_at_most(toolkit: Path, tmp_path: Path) -> None:
    assert max(compiled("80", toolkit, tmp_path).values()) <= 64
