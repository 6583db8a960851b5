"""Compile units side by side and link them: plain command lines, no build system."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from failure import BuildError
from product import Product
from resources import KernelResources, read_ptxas
from toolchain import Toolchain

#: The largest unit took 1.1 GB; the rest is left for what else runs on a machine whose GPU shares the memory.
_MEMORY_A_JOB: Final = 4 << 30
_LIBRARIES: Final = ("c10", "c10_cuda", "torch_cpu", "torch_python")
#: Where torch and CUDA's run time lie when all three are installed from wheels into one site-packages.
RUN_PATH: Final = "$ORIGIN/torch/lib:$ORIGIN/nvidia/cu13/lib"


@dataclass(frozen=True)
class Compiled:
    """One object file.

    Attributes:
        unit: its source, relative to the folder that it is compiled in.
        object: the file.
        seconds: how long it took.
        kernels: GPU code in it.
    """

    unit: str
    object: Path
    seconds: float
    kernels: tuple[KernelResources, ...]


@dataclass(frozen=True)
class Job:
    """A command that makes one object; it runs in `folder` so that no path of this machine gets into the object."""

    unit: str
    object: Path
    command: tuple[str, ...]
    folder: Path


def default_jobs() -> int:
    """Cores this process may use, and no more than the free memory feeds."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    by_memory = int(available[1]) * 1024 // _MEMORY_A_JOB if available else 1
    return max(1, min(len(os.sched_getaffinity(0)), by_memory))


def plan_jobs(product: Product, toolchain: Toolchain, codes: Sequence[str], arch_list: str, objects: Path) -> list[Job]:
    """A job for every unit, in the product's order.

    Args:
        codes: capabilities as nvcc writes them, as `121a`.
        arch_list: the same as the module says it, as `12.1a`.
        objects: folder for the objects.
    """
    defines = {**product.defines, "GLM53_EXL3_ARCH_LIST": f'"{arch_list}"'}
    includes = _includes(product, toolchain)
    host = (
        *(toolchain.host_compiler, *_host_flags(product, toolchain)),
        *(f"-D{name}={text}" for name, text in defines.items()),
        *(f"-I{folder}" for folder in product.host_headers),
        *includes,
    )
    device = (str(toolchain.nvcc), *_nvcc_flags(product, toolchain, codes), "-I.", *includes)
    jobs: list[Job] = []
    for units in product.units:
        for unit in units.names:
            target = objects / f"{Path(unit).stem}.o"
            command = device if unit.endswith(".cu") else host
            jobs.append(Job(unit, target, (*command, "-c", unit, "-o", str(target)), units.folder))
    return jobs


def compile_all(jobs: Sequence[Job], workers: int) -> list[Compiled]:
    """Run all jobs, `workers` at a time, and print a line for each.

    Raises:
        BuildError: a unit does not compile; those that wait are not started.
    """
    printing = threading.Lock()

    def run(job: Job) -> Compiled:
        done = _compile(job)
        with printing:
            print(f"{done.seconds:7.1f} s  {job.unit}", flush=True)
        return done

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        finished, waiting = wait(futures, return_when=FIRST_EXCEPTION)
        for future in waiting:
            future.cancel()
    for future in finished:
        future.result()
    return [future.result() for future in futures]


def link(compiled: Sequence[Compiled], toolchain: Toolchain, target: Path) -> None:
    """Link the module.

    Raises:
        BuildError: linking failed, or a symbol is in no library that will be loaded with it. Python's are left open, as
            in every extension.
    """
    assert toolchain.cudart is not None, "a toolchain for objects only"
    command = [
        toolchain.host_compiler,
        *("-shared", "-o", str(target)),
        *(str(one.object) for one in compiled),
        *(f"-L{toolchain.torch / 'lib'}", *(f"-l{name}" for name in _LIBRARIES)),
        *(f"-L{toolchain.cudart.parent}", f"-l:{toolchain.cudart.name}"),
        # By name: some compilers link a static one in, whose streams fail beside torch's when a check prints a number.
        "-l:libstdc++.so.6",
        # --no-undefined would refuse Python's symbols too; as warnings they can be told apart.
        *("-Wl,--no-undefined", "-Wl,--warn-unresolved-symbols", "-Wl,-z,now", "-Wl,--build-id=none"),
        # Local symbols are left out: nvcc puts the random names of its temporary files there.
        *(f"-Wl,-rpath,{RUN_PATH}", "-Wl,--strip-all"),
    ]
    done = _run(command, target.parent)
    if done.returncode:
        raise BuildError("link-failed", f"{target.name} does not link:\n{done.stderr}", hint="check --torch")
    open_symbols = set(re.findall(r"undefined reference to [`']([^']+)'", done.stderr))
    if not any(name.startswith("Py") for name in open_symbols):
        raise BuildError(
            "link-unchecked",
            "the linker does not report undefined symbols, so that they would only show on import",
            hint="link with GNU ld: --host-compiler g++",
        )
    if unknown := sorted(name for name in open_symbols if not name.startswith(("Py", "_Py"))):
        raise BuildError(
            "link-undefined",
            f"{len(unknown)} symbols of {target.name} are in no library, first {unknown[0]}",
            hint="check that torch, and the tree of --source, are the pinned ones",
        )


def _compile(job: Job) -> Compiled:
    job.object.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    done = _run(job.command, job.folder)
    if done.returncode:
        raise BuildError(
            "compile-failed",
            f"{job.unit} does not compile:\n{done.stderr or done.stdout}",
            hint=f"cd {job.folder} && {' '.join(job.command)}",
        )
    return Compiled(job.unit, job.object, time.monotonic() - started, tuple(read_ptxas(done.stdout + done.stderr)))


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _includes(product: Product, toolchain: Toolchain) -> tuple[str, ...]:
    return (
        *(f"-I{folder}" for folder in product.headers),
        *("-isystem", str(toolchain.torch / "include")),
        *("-isystem", str(toolchain.torch / "include" / "torch" / "csrc" / "api" / "include")),
        *("-isystem", str(toolchain.python_include)),
        *("-isystem", str(toolchain.cuda_include)),
    )


def _prefix_map(toolchain: Toolchain) -> str:
    # torch's checks carry the path of their header.
    return f"-ffile-prefix-map={toolchain.torch.parent}=."


def _host_flags(product: Product, toolchain: Toolchain) -> tuple[str, ...]:
    # exllamav3 asks for -Ofast: a library linked with that makes the whole process round small numbers to zero.
    return (
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-fvisibility=hidden",
        _prefix_map(toolchain),
        f"-DTORCH_EXTENSION_NAME={product.module}",
    )


def _nvcc_flags(product: Product, toolchain: Toolchain, codes: Sequence[str]) -> tuple[str, ...]:
    return (
        *("-ccbin", toolchain.host_compiler, "-std=c++20", "-O3", "--expt-relaxed-constexpr", *product.nvcc_flags),
        *(f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes),
        *("-Xcompiler", f"-fPIC,-fvisibility=hidden,{_prefix_map(toolchain)}"),
        *("-Xptxas", "-v"),
        f"-DTORCH_EXTENSION_NAME={product.module}",
    )
