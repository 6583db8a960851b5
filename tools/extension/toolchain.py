"""The compilers, torch and Python that a build uses, each checked before anything is compiled."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from failure import BuildError
from pinned import Pinned

#: Asynchronous copies to shared memory and products of 16 by 8 by 16, which all our kernels use, came with 8.0.
_OLDEST: Final = 80


@dataclass(frozen=True)
class Toolchain:
    """Where everything is.

    Attributes:
        nvcc: the CUDA compiler.
        nvcc_release: as `13.0.88`.
        cuda_include: folder of cuda_runtime.h.
        host_compiler: C++ compiler of the target.
        target: what it compiles for, as `aarch64-linux-gnu`.
        torch: folder of the torch package.
        python_include: folder of Python.h.
        python_tag: of that header, as `cp312`.
        cudart: libcudart.so.13 for the target; None when only objects are asked for.
    """

    nvcc: Path
    nvcc_release: str
    cuda_include: Path
    host_compiler: str
    target: str
    torch: Path
    python_include: Path
    python_tag: str
    cudart: Path | None

    @property
    def machine(self) -> str:
        """First part of the target, as in a wheel's platform tag."""
        return self.target.split("-")[0]

    @property
    def module_suffix(self) -> str:
        """End of a module's file name that only the right Python takes; compilers write more into their target."""
        return f".cpython-{self.python_tag.removeprefix('cp')}-{self.machine}-linux-gnu.so"


def find_toolchain(
    pinned: Pinned,
    *,
    nvcc: Path | None,
    cuda_home: Path | None,
    host_compiler: str,
    torch: Path | None,
    python_include: Path | None,
    objects_only: bool,
    allow_other_torch: bool,
) -> Toolchain:
    """Find and check all parts.

    Raises:
        BuildError: one is missing or of another release than the pins say.
    """
    compiler, home = _find_nvcc(pinned, nvcc, cuda_home)
    release = _check_release(compiler, pinned)
    # Units are compiled in folders of their own, where a relative path would not lead to it.
    host_compiler = str(Path(host_compiler).absolute()) if "/" in host_compiler else host_compiler
    target = _run(host_compiler, "-dumpmachine", missing=f"host compiler {host_compiler}").strip()
    torch = _check_torch(torch or _find_torch(), pinned, objects_only, allow_other_torch)
    include = python_include or Path(sysconfig.get_path("include"))
    return Toolchain(
        nvcc=compiler,
        nvcc_release=release,
        cuda_include=_cuda_include(home),
        host_compiler=host_compiler,
        target=target,
        torch=torch,
        python_include=include.resolve(),
        python_tag=_python_tag(include),
        cudart=None if objects_only else _find_cudart(torch, home),
    )


def check_arch(toolchain: Toolchain, arch_list: str) -> tuple[str, ...]:
    """Compute capabilities of `arch_list` as nvcc writes them: `12.1a` gives `121a`.

    Raises:
        BuildError: empty, not a capability, not one of this compiler, or older than the kernels need.
    """
    known = re.findall(r"compute_(\d+)", _run(str(toolchain.nvcc), "--list-gpu-arch", missing="nvcc"))
    # The suffixes for one chip (a) and its family (f) are not in nvcc's list; they exist from 9.0 on.
    words = re.split(r"[\s;,]+", arch_list.strip())
    codes = []
    for word in words:
        parts = re.fullmatch(r"(\d+)\.(\d)([af]?)", word)
        if parts is None or parts[1] + parts[2] not in known:
            raise BuildError(
                "arch-unknown",
                f"nvcc {toolchain.nvcc_release} cannot compile for {word or 'nothing'}",
                expected=", ".join(f"{one[:-1]}.{one[-1]}" for one in known if int(one) >= _OLDEST)
                + ", or one of 9.0 and newer with a or f",
                hint="--arch 12.1a for a GB10",
            )
        if int(parts[1] + parts[2]) < _OLDEST:
            raise BuildError(
                "arch-too-old",
                f"the kernels need more than a GPU of compute capability {word} has",
                expected="8.0 or newer",
                hint="--arch 12.1a for a GB10",
            )
        codes.append("".join(parts.groups()))
    return tuple(codes)


def _find_nvcc(pinned: Pinned, nvcc: Path | None, cuda_home: Path | None) -> tuple[Path, Path]:
    home = cuda_home or (Path(os.environ["CUDA_HOME"]) if os.environ.get("CUDA_HOME") and nvcc is None else None)
    on_path = shutil.which("nvcc")
    compiler = nvcc or (home / "bin" / "nvcc" if home else Path(on_path or "nvcc"))
    if not compiler.is_file():
        raise BuildError(
            "nvcc-missing",
            f"no CUDA compiler at {compiler}" if nvcc or home else "no nvcc on PATH, and CUDA_HOME is not set",
            expected=f"CUDA {pinned.cuda}",
            hint="--cuda-home /usr/local/cuda, or the wheels that docs/extension.md names",
        )
    # As nvcc itself does: its folder's parent is the toolkit, wherever a link to it lies.
    return compiler.absolute(), (home or compiler.resolve().parents[1]).absolute()


def _check_release(nvcc: Path, pinned: Pinned) -> str:
    text = _run(str(nvcc), "--version", missing=f"nvcc at {nvcc}")
    release = re.search(r"release (\d+\.\d+), V(\S+)", text)
    if release is None or release[1] != pinned.cuda:
        raise BuildError(
            "nvcc-release",
            f"{nvcc} is of another CUDA release than the pinned torch",
            expected=pinned.cuda,
            found=release[1] if release else text.strip().splitlines()[-1] if text.strip() else "no version",
            hint=f"--cuda-home with CUDA {pinned.cuda}, such as /usr/local/cuda-{pinned.cuda}",
        )
    return release[2]


def _cuda_include(home: Path) -> Path:
    include = home / "include"
    if not (include / "cuda_runtime.h").is_file():
        raise BuildError("cuda-headers", f"{include} has no cuda_runtime.h", hint="--cuda-home with a whole toolkit")
    return include


def _find_torch() -> Path:
    # Only found, never imported: it may be built for another machine, or for one with a GPU.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch-missing", "this Python has no torch", hint="--torch SITE-PACKAGES/torch")
    return Path(spec.origin).parent


def _check_torch(torch: Path, pinned: Pinned, objects_only: bool, allow_other: bool) -> Path:
    torch = torch.absolute()
    hint = f"--torch SITE-PACKAGES/torch of torch {pinned.torch}, built for CUDA {pinned.cuda}"
    needed = ["include/torch/csrc/utils/pybind.h", "include/c10/cuda/impl/cuda_cmake_macros.h"]
    needed += [] if objects_only else ["lib/libc10_cuda.so", "lib/libtorch_python.so"]
    for name in needed:
        if not (torch / name).is_file():
            cpu = "; it is a build without CUDA" if "cuda" in name and (torch / needed[0]).is_file() else ""
            raise BuildError("torch-headers", f"{torch} has no {name}{cpu}", hint=hint)
    file = torch / "version.py"
    found = re.search(r"__version__ = '([^'+]+)", file.read_text(encoding="utf-8")) if file.is_file() else None
    version = found.group(1) if found else "no version.py"
    # torch keeps no stable C++ interface between minor releases.
    if version != pinned.torch and not allow_other:
        raise BuildError(
            "torch-version", f"{torch} is not the pinned torch", expected=pinned.torch, found=version, hint=hint
        )
    return torch


def _python_tag(include: Path) -> str:
    header = include / "patchlevel.h"
    text = header.read_text(encoding="utf-8") if header.is_file() and (include / "Python.h").is_file() else ""
    numbers = re.findall(r"#define\s+PY_(?:MAJOR|MINOR)_VERSION\s+(\d+)", text)
    if len(numbers) != 2:
        raise BuildError(
            "python-headers", f"{include} has no Python.h", hint="apt-get install python3-dev, or --python-include"
        )
    return f"cp{numbers[0]}{numbers[1]}"


def _find_cudart(torch: Path, home: Path) -> Path:
    """The library of the target: the one torch loads, or the toolkit's where torch was not installed from wheels."""
    folders = [torch.parent / "nvidia" / "cu13" / "lib", home / "lib64", home / "lib"]
    for folder in folders:
        if (folder / "libcudart.so.13").is_file():
            return folder / "libcudart.so.13"
    raise BuildError(
        "cudart-missing",
        f"no libcudart.so.13 in {', '.join(map(str, folders))}",
        hint=f"pip install --no-deps nvidia-cuda-runtime beside torch in {torch.parent}",
    )


def _run(*command: str, missing: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise BuildError(
            "compiler-missing", f"cannot run the {missing}: {error}", hint="name it with its path"
        ) from error
    if done.returncode:
        text = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise BuildError("compiler-broken", f"{' '.join(command)} failed: {text}", hint="try that command by hand")
    return done.stdout
