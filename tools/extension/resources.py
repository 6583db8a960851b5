"""Registers, spills and shared memory of compiled kernels, from what ptxas says with -v."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ENTRY: Final = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
#: Left out where a kernel has none.
_SHARED: Final = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelResources:
    """One kernel for one architecture; sizes in bytes a thread, but for shared memory.

    Attributes:
        name: mangled.
        arch: as `sm_121a`.
        registers: a thread.
        stack: frame, spilled registers included; with the frames of all functions that it calls.
        spill_stores: written to local memory, by these functions too.
        spill_loads: read from it.
        shared: shared memory of a block, beside what a launch asks for.
    """

    name: str
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int


def read_ptxas(text: str) -> list[KernelResources]:
    """Kernels in the order in which ptxas names them."""
    kernels = []
    # Each entry is followed by its own lines; the first part is about no kernel.
    parts = _ENTRY.split(text)[1:]
    for name, arch, body in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        registers, shared = _REGISTERS.search(body), _SHARED.search(body)
        # Of the kernel and of each function that it calls instead of taking it in.
        frames = [tuple(map(int, found)) for found in _STACK.findall(body)]
        if frames and registers is not None:
            sums = (sum(one) for one in zip(*frames, strict=True))
            kernels.append(KernelResources(name, arch, int(registers[1]), *sums, int(shared[1]) if shared else 0))
    return kernels
