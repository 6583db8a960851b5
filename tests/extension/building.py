"""The build script and what it is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from extension.pinned_wheels import ROOT, fetch, unpack

TOOL = ROOT / "tools" / "exllamav3_extension"
STUB = ROOT / "tests" / "sources" / "exllamav3"
#: What a build needs of CUDA; docs/extension.md names the same.
COMPILER_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
HERE = "x86_64-linux"
#: The released neighbour of the pinned revision, which cannot be had without GitHub.
NEIGHBOUR = "1.4.5"
#: Libraries that the module is linked with.
LINKED = ("c10", "c10_cuda", "torch_cpu", "torch_python")


def build(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the build script as a user does."""
    command = [sys.executable, str(TOOL / "build.py"), *map(str, arguments)]
    variables = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def torch_of(system: str) -> Path:
    """Headers and the linked libraries of the pinned torch, with CUDA's run time beside it."""
    parts = ("torch/include/", "torch/version.py", *(f"torch/lib/lib{name}.so" for name in LINKED))
    wheels = [(fetch("torch", system), parts), (fetch("nvidia-cuda-runtime", system), ("nvidia/",))]
    return unpack(f"torch-{system}", wheels) / "torch"
