"""The machine itself: architecture, system, interpreter, memory, disk, port and limits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from glm53_exl3.pins import RuntimeName, load_pins
from glm53_exl3.probes.host import Host, Limit
from glm53_exl3.probes.memory import MEMINFO, HostMemory, parse_meminfo
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.probes.units import GIB, gib

ARCH: Final = Check("arch", "architecture", "host")
OS: Final = Check("os", "operating system", "host")
PYTHON: Final = Check("python", "Python of the runtime", "host")
MEMORY: Final = Check("memory", "memory", "host")
PAGE_CACHE: Final = Check("page-cache", "page cache", "host")
SWAP: Final = Check("swap", "swap", "host")
DISK: Final = Check("disk", "free disk", "host")
PORT: Final = Check("port", "port", "host")
OPEN_FILES: Final = Check("open-files", "open files", "host")
ADDRESS_SPACE: Final = Check("address-space", "address space", "host")

#: What a server needs beside the bytes of its shards, at least. One Spark after loading: 92.3 GiB with the K2 pack of
#: 91.0 GiB; then CUDA graphs and the KV cache of a short context come on top. `plan` says it exactly.
BESIDE_WEIGHTS_BYTES: Final = 4 * GIB
#: Below it vLLM warns that it cannot raise its own limit far enough.
_OPEN_FILES_WANTED: Final = 65535
#: 120 mapped shards, compile caches, sockets: fewer is not enough to start.
_OPEN_FILES_NEEDED: Final = 4096
_SWAPPED_BYTES: Final = 2 * GIB
_PYTHONS: Final = ((3, 11), (3, 13))
_PYTHON_VERSION: Final = re.compile(r"^Python (\d+)\.(\d+)\.\d+", re.MULTILINE)
_CGROUP_LIMIT: Final = "/sys/fs/cgroup/memory.max"


@dataclass(frozen=True)
class SystemFacts:
    """Architecture and operating system.

    Attributes:
        machine: architecture, as `aarch64`.
        kernel: name and release.
        distribution: PRETTY_NAME of `/etc/os-release`, empty when there is none.
    """

    machine: str
    kernel: str
    distribution: str


def read_system(host: Host) -> SystemFacts:
    """Architecture and operating system of a host."""
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', host.read_text("/etc/os-release") or "", re.MULTILINE)
    return SystemFacts(host.machine(), host.kernel(), match.group(1) if match else "")


def check_arch(facts: SystemFacts) -> CheckResult:
    """A Spark is aarch64, and so are the pinned wheels and the extension."""
    if facts.machine == "aarch64":
        return ARCH.ok(facts.machine)
    return ARCH.fail(facts.machine, "the pack is served on a DGX Spark (aarch64); here: glm53-exl3 demo")


def check_os(facts: SystemFacts) -> CheckResult:
    """Linux; which one is for the reader."""
    measured = ", ".join(filter(None, (facts.distribution, facts.kernel)))
    return OS.ok(measured) if facts.kernel.startswith("Linux ") else OS.fail(measured, "use Linux")


@dataclass(frozen=True)
class PythonFacts:
    """The interpreter that would run vLLM.

    Attributes:
        executable: its path.
        version: major and minor; None when it does not run.
        runtime: `fork` or `upstream`.
    """

    executable: str
    version: tuple[int, int] | None
    runtime: RuntimeName


def read_python(host: Host, executable: str, runtime: RuntimeName) -> PythonFacts:
    """Version of an interpreter, asked of itself."""
    output = host.run(executable, "--version")
    match = _PYTHON_VERSION.search(output.stdout) if output is not None else None
    return PythonFacts(executable, (int(match.group(1)), int(match.group(2))) if match else None, runtime)


def check_python(facts: PythonFacts) -> CheckResult:
    """The fork and the extension are built for one minor version; upstream's wheels take several."""
    wanted = load_pins().python
    if facts.version is None:
        return PYTHON.fail(f"{facts.executable} does not run", "name the runtime's interpreter: --python PATH")
    measured = f"{facts.version[0]}.{facts.version[1]} ({facts.executable})"
    hint = f"with Nix: nix run .#serve; without: python{wanted} -m venv VENV, install there, --python VENV/bin/python"
    if f"{facts.version[0]}.{facts.version[1]}" == wanted:
        return PYTHON.ok(measured)
    if facts.runtime == "upstream" and _PYTHONS[0] <= facts.version <= _PYTHONS[1]:
        return PYTHON.warn(f"{measured}, the pinned runtime has {wanted}", hint)
    return PYTHON.fail(f"{measured}, not {wanted}", hint)


@dataclass(frozen=True)
class MemoryFacts:
    """Memory and what is to go into it.

    Attributes:
        memory: of the host.
        limit_bytes: limit of the control group this runs in, None without one.
        weight_bytes: size of the shards.
        pack: what the weights belong to, for the message.
        pattern: shell pattern of the shards on disk.
    """

    memory: HostMemory
    limit_bytes: int | None
    weight_bytes: int
    pack: str
    pattern: str

    @property
    def needed_bytes(self) -> int:
        """The least a server needs."""
        return self.weight_bytes + BESIDE_WEIGHTS_BYTES


def read_memory(host: Host, weight_bytes: int, pack: str, pattern: str) -> MemoryFacts:
    """Memory of a host."""
    raw = (host.read_text(_CGROUP_LIMIT) or "").strip()
    memory = parse_meminfo(host.read_text(str(MEMINFO)) or "")
    return MemoryFacts(memory, int(raw) if raw.isdecimal() else None, weight_bytes, pack, pattern)


def check_memory(facts: MemoryFacts) -> CheckResult:
    """Whether the weights fit at all, and fit into what is not in use."""
    memory = facts.memory
    measured = f"{gib(memory.total_bytes)}, {gib(memory.available_bytes)} available"
    need = f"{facts.pack} needs {gib(facts.needed_bytes)}"
    if memory.total_bytes < facts.needed_bytes:
        return MEMORY.fail(f"{measured}; {need}", "serve it on a DGX Spark with 128 GB; here: glm53-exl3 demo")
    if facts.limit_bytes is not None and facts.limit_bytes < facts.needed_bytes:
        return MEMORY.fail(
            f"the container or service may use {gib(facts.limit_bytes)}; {need}",
            "raise the limit: docker run --memory, or MemoryMax= of the unit",
        )
    if memory.available_bytes < facts.needed_bytes:
        return MEMORY.fail(f"{measured}; {need}", "end what uses it: ps -eo rss,pid,args --sort=-rss | head")
    return MEMORY.ok(measured)


def check_page_cache(facts: MemoryFacts) -> CheckResult:
    """On unified memory CUDA's free memory is MemFree: cached files count as used until they are dropped."""
    memory = facts.memory
    measured = f"{gib(memory.page_cache_bytes)} cached, {gib(memory.free_bytes)} free for CUDA"
    if memory.free_bytes >= facts.needed_bytes or memory.available_bytes < facts.needed_bytes:
        return PAGE_CACHE.ok(measured)
    drop = (
        "import glob, os; [os.posix_fadvise(os.open(p, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED) "
        f"for p in glob.glob('{facts.pattern}')]"
    )
    return PAGE_CACHE.warn(
        f"page cache holds {gib(memory.page_cache_bytes)} that CUDA counts as used: "
        f"{gib(memory.free_bytes)} free, {gib(facts.needed_bytes)} needed",
        f'drop it for the shards: python3 -c "{drop}"; or, as root, for everything: '
        "sync; echo 1 | sudo tee /proc/sys/vm/drop_caches",
    )


def check_swap(facts: MemoryFacts) -> CheckResult:
    """Pages that were swapped out mean that memory ran short before."""
    total, free = facts.memory.swap_total_bytes, facts.memory.swap_free_bytes
    measured = f"{gib(total)}, {gib(total - free)} in use" if total else "none"
    if total - free < _SWAPPED_BYTES:
        return SWAP.ok(measured)
    return SWAP.warn(
        f"{measured}: memory ran short before, and a host that swaps hangs under load",
        "end what is not needed, then: sudo swapoff -a && sudo swapon -a",
    )


@dataclass(frozen=True)
class DiskFacts:
    """Room for the pack.

    Attributes:
        folder: where the pack is or would be.
        free_bytes: free space there, None when unknown.
        missing_bytes: what is still to be downloaded.
        named: whether the user named the folder; otherwise the pack may well go elsewhere.
    """

    folder: str
    free_bytes: int | None
    missing_bytes: int
    named: bool


def check_disk(facts: DiskFacts) -> CheckResult:
    """Room for what is still to be downloaded."""
    if facts.free_bytes is None:
        return DISK.skip(f"{facts.folder}: free space unknown")
    measured = f"{gib(facts.free_bytes)} free at {facts.folder}"
    if not facts.missing_bytes:
        return DISK.ok(measured)
    measured += f", {gib(facts.missing_bytes)} to download"
    if facts.free_bytes >= facts.missing_bytes:
        return DISK.ok(measured)
    hint = f"free {gib(facts.missing_bytes - facts.free_bytes)}, or name a folder elsewhere: --pack DIR"
    return (DISK.fail if facts.named else DISK.warn)(measured, hint)


@dataclass(frozen=True)
class PortFacts:
    """A TCP port.

    Attributes:
        port: its number.
        error: why it cannot be listened on, None when it can.
    """

    port: int
    error: str | None


def check_port(facts: PortFacts) -> CheckResult:
    """Whether the server could listen."""
    if facts.error is None:
        return PORT.ok(f"{facts.port} free")
    return PORT.fail(
        f"{facts.port}: {facts.error}", f"ss -ltnp 'sport = :{facts.port}' names what listens; or take another: --port"
    )


@dataclass(frozen=True)
class LimitFacts:
    """Resource limits of this shell.

    Attributes:
        open_files: RLIMIT_NOFILE.
        address_space: RLIMIT_AS in bytes.
    """

    open_files: Limit
    address_space: Limit


def read_limits(host: Host) -> LimitFacts:
    """Resource limits of a host."""
    return LimitFacts(host.limit("open files"), host.limit("address space"))


def check_open_files(facts: LimitFacts) -> CheckResult:
    """The hard limit counts: vLLM raises the soft one to it by itself."""
    hard = facts.open_files.hard
    measured = f"{'unlimited' if facts.open_files.soft is None else facts.open_files.soft}, at most "
    measured += "unlimited" if hard is None else str(hard)
    hint = "ulimit -Hn 524288 as root, LimitNOFILE= of the unit, or docker run --ulimit nofile=524288"
    if hard is None or hard >= _OPEN_FILES_WANTED:
        return OPEN_FILES.ok(measured)
    if hard >= _OPEN_FILES_NEEDED:
        return OPEN_FILES.warn(f"{measured}; vLLM asks for {_OPEN_FILES_WANTED}", hint)
    return OPEN_FILES.fail(f"{measured}; {_OPEN_FILES_NEEDED} are needed", hint)


def check_address_space(facts: LimitFacts) -> CheckResult:
    """Shards are mapped and CUDA reserves address space by the terabyte: no limit is high enough."""
    soft = facts.address_space.soft
    if soft is None:
        return ADDRESS_SPACE.ok("unlimited")
    return ADDRESS_SPACE.fail(f"limited to {gib(soft)}", "ulimit -v unlimited")
