"""The build script and what it is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from extension.pinned_wheels import ROOT, fetch, unpack

TOOL = ROOT / "tools" / "extension"
STUB = ROOT / "tests" / "sources" / "exllamav3"
#: What a build needs of CUDA; docs/extension.md names the same.
COMPILER_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
HERE = "x86_64-linux"
#: The released neighbour of the pinned revision, which cannot be had without GitHub.
NEIGHBOUR = "1.4.5"
#: What our own kernels are compiled for here: the oldest GPU, two others, and the GB10.
NATIVE_ARCH_LIST = "8.0 9.0 12.0 12.1a"
#: Libraries that a module is linked with.
LINKED = ("c10", "c10_cuda", "torch_cpu", "torch_python")


def build(product: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the build script as a user does."""
    command = [sys.executable, str(TOOL / "build.py"), product, *map(str, arguments)]
    variables = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def torch_of(system: str) -> Path:
    """Headers and the linked libraries of the pinned torch, with CUDA's run time beside it."""
    parts = ("torch/include/", "torch/version.py", *(f"torch/lib/lib{name}.so" for name in LINKED))
    wheels = [(fetch("torch", system), parts), (fetch("nvidia-cuda-runtime", system), ("nvidia/",))]
    return unpack(f"torch-{system}", wheels) / "torch"


def import_by(script: str, folder: Path, torch: Path, *arguments: str | Path) -> dict[str, Any]:
    """What a Python process prints of the module in `folder`, as JSON; it gets the folder and the arguments as its own.

    The CPU build of torch of this environment lacks libc10_cuda, which is taken from the pinned wheel.
    """
    libraries = folder / "libraries"
    libraries.mkdir(exist_ok=True)
    # Alone, without the other libraries of the CUDA build: they would take the place of those of this environment.
    for library in (torch / "lib" / "libc10_cuda.so", torch.parent / "nvidia" / "cu13" / "lib" / "libcudart.so.13"):
        (libraries / library.name).unlink(missing_ok=True)
        (libraries / library.name).symlink_to(library)
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(libraries)}
    command = [sys.executable, "-c", script, str(folder), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
