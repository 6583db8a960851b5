"""The GPU as `nvidia-smi` sees it.

On a GB10 there is no memory of its own: memory columns read `[N/A]`, while the memory of each process is listed.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Final

from glm53_exl3.pins import load_pins
from glm53_exl3.probes.host import CommandOutput, Host
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.probes.units import gib, version_numbers

GPU: Final = Check("gpu", "GPU", "host")
DRIVER: Final = Check("gpu-driver", "GPU driver", "host")
PROCESSES: Final = Check("gpu-processes", "other GPU processes", "host")

#: CUDA 13.0 needs driver 580 (CUDA release notes, table of minimum driver versions).
_OLDEST_DRIVER: Final = 580
#: Reported to deadlock while vLLM captures CUDA graphs on a Spark (Reederey87/glm53-flash-exl3-2x-dgx-spark).
_DEADLOCKING_DRIVER: Final = 590
#: What a desktop session takes; more is another model.
_SMALL_PROCESS_MIB: Final = 1024
_GPU_QUERY: Final = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader,nounits")
_APP_QUERY: Final = (
    "nvidia-smi",
    "--query-compute-apps=pid,process_name,used_memory",
    "--format=csv,noheader,nounits",
)
_INSTALL: Final = "DGX OS: sudo apt install --reinstall nvidia-driver-580-open, then reboot"


@dataclass(frozen=True)
class GpuFacts:
    """GPUs of a host.

    Attributes:
        error: why none could be listed, empty when they could.
        gpus: (name, compute capability, driver version) of each.
    """

    error: str
    gpus: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses the GPU.

    Attributes:
        pid: its process id.
        name: its program.
        mib: memory in MiB, None when the driver does not say.
    """

    pid: int
    name: str
    mib: int | None


@dataclass(frozen=True)
class GpuProcessFacts:
    """Processes on the GPU.

    Attributes:
        error: why they could not be listed, empty when they could.
        processes: each of them.
    """

    error: str
    processes: tuple[GpuProcess, ...]


def read_gpus(host: Host) -> GpuFacts:
    """GPUs by `nvidia-smi`."""
    error, rows = _rows(host.run(*_GPU_QUERY), 3)
    return GpuFacts(error, tuple((name, capability, driver) for name, capability, driver in rows))


def read_gpu_processes(host: Host) -> GpuProcessFacts:
    """Compute processes by `nvidia-smi`."""
    error, rows = _rows(host.run(*_APP_QUERY), 3)
    found = tuple(
        GpuProcess(int(pid), name, int(mib) if mib.isdecimal() else None) for pid, name, mib in rows if pid.isdecimal()
    )
    return GpuProcessFacts(error, found)


def _rows(output: CommandOutput | None, columns: int) -> tuple[str, list[list[str]]]:
    if output is None:
        return "nvidia-smi not found", []
    if output.returncode:
        text = (output.stdout + output.stderr).strip().splitlines() or [f"exit {output.returncode}"]
        return f"nvidia-smi: {text[0]}", []
    rows = [[cell.strip() for cell in row] for row in csv.reader(output.stdout.splitlines())]
    # A process name may hold commas; the columns around it cannot.
    wide = [[row[0], ",".join(row[1 : len(row) - columns + 2]), *row[len(row) - columns + 2 :]] for row in rows]
    return "", [row for row in wide if len(row) == columns]


def check_gpu(facts: GpuFacts) -> CheckResult:
    """One GPU of the pinned compute capability."""
    wanted = load_pins().gpu_capability
    if facts.error:
        return GPU.fail(facts.error, f"this needs a GB10 (compute capability {wanted}). {_INSTALL}")
    if not facts.gpus:
        return GPU.fail("nvidia-smi lists no GPU", f"this needs a GB10 (compute capability {wanted}). {_INSTALL}")
    measured = ", ".join(f"{name} ({capability})" for name, capability, _ in facts.gpus)
    if facts.gpus[0][1] == wanted:
        return GPU.ok(measured)
    return GPU.fail(
        f"{measured}, not {wanted}", f"kernels and patches are built for {wanted}; another GPU needs its own build"
    )


def check_driver(facts: GpuFacts) -> CheckResult:
    """A driver that knows CUDA 13.0 and is not known to hang."""
    if not facts.gpus:
        return DRIVER.skip("no GPU")
    version = facts.gpus[0][2]
    major = (version_numbers(version) or (0,))[0]
    if major < _OLDEST_DRIVER:
        return DRIVER.fail(f"{version}; CUDA 13.0 needs {_OLDEST_DRIVER} or newer", _INSTALL)
    if major == _DEADLOCKING_DRIVER:
        return DRIVER.warn(f"{version}, reported to deadlock while CUDA graphs are captured", _INSTALL)
    return DRIVER.ok(version)


def check_processes(facts: GpuProcessFacts) -> CheckResult:
    """Nothing else on the GPU that takes memory from the pack."""
    if facts.error:
        return PROCESSES.skip(facts.error)
    large = [process for process in facts.processes if process.mib is None or process.mib >= _SMALL_PROCESS_MIB]
    if not large:
        small = len(facts.processes)
        return PROCESSES.ok(f"{small}, all below {gib(_SMALL_PROCESS_MIB * 2**20)}" if small else "none")
    listed = ", ".join(
        f"pid {process.pid} {process.name} {'?' if process.mib is None else gib(process.mib * 2**20)}"
        for process in large
    )
    return PROCESSES.warn(listed, f"end them: kill {' '.join(str(process.pid) for process in large)}")
