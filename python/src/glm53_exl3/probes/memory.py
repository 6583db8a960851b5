"""Memory of the host, from `/proc/meminfo`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEMINFO: Final = Path("/proc/meminfo")
_LINE = re.compile(r"^(\w+(?:\(\w+\))?):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class HostMemory:
    """Memory of a host, in bytes.

    On a GB10 the GPU allocates from it. `cudaMemGetInfo` reports MemFree there, so pages of the page cache count as
    used for CUDA although MemAvailable counts them as free.

    Attributes:
        total_bytes: MemTotal.
        free_bytes: MemFree, what CUDA can see at once.
        available_bytes: MemAvailable, what the kernel could free for a process.
        page_cache_bytes: Cached, Buffers and reclaimable slab.
        swap_total_bytes: SwapTotal.
        swap_free_bytes: SwapFree.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    page_cache_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int


def parse_meminfo(text: str) -> HostMemory:
    """Memory from the text of `/proc/meminfo`; fields that are not there count as zero."""
    kib = {name: int(value) for name, value in _LINE.findall(text)}

    def of(*names: str) -> int:
        return 1024 * sum(kib.get(name, 0) for name in names)

    return HostMemory(
        total_bytes=of("MemTotal"),
        free_bytes=of("MemFree"),
        available_bytes=of("MemAvailable"),
        page_cache_bytes=of("Cached", "Buffers", "SReclaimable"),
        swap_total_bytes=of("SwapTotal"),
        swap_free_bytes=of("SwapFree"),
    )


def read_host_memory() -> HostMemory:
    """Memory of this host.

    Raises:
        OSError: there is no `/proc/meminfo`.
    """
    return parse_meminfo(MEMINFO.read_text(encoding="ascii"))
