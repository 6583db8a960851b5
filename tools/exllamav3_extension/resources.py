"""Registers and spills of compiled kernels, from what ptxas says with -v."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_ENTRY: Final = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
_STACK: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
#: Template arguments of exl3_moe_kernel in its mangled name: bits (0: read at run time), columns of a tile, codebook.
_MOE_KERNEL: Final = re.compile(r"exl3_moe_kernelILi(\d)ELi(\d+)ELi(\d)E")
_CODEBOOKS: Final = {"1": "mcg", "2": "mul1"}


@dataclass(frozen=True)
class KernelResources:
    """One kernel for one architecture; sizes in bytes a thread.

    Attributes:
        name: mangled.
        arch: as `sm_121a`.
        registers: a thread.
        stack: frame, spilled registers included.
        spill_stores: written to local memory.
        spill_loads: read from it.
    """

    name: str
    arch: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


def read_ptxas(text: str) -> list[KernelResources]:
    """Kernels in the order in which ptxas names them."""
    kernels = []
    # Each entry is followed by its own lines; the first part is about no kernel.
    parts = _ENTRY.split(text)[1:]
    for name, arch, body in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
        stack, registers = _STACK.search(body), _REGISTERS.search(body)
        if stack is not None and registers is not None:
            kernels.append(KernelResources(name, arch, int(registers[1]), *map(int, stack.groups())))
    return kernels


def moe_table(kernels: Iterable[KernelResources]) -> str:
    """Markdown: a row for each instance of exl3_moe_kernel, by bits, codebook and width."""
    rows = []
    for kernel in kernels:
        if (arguments := _MOE_KERNEL.search(kernel.name)) is not None:
            bits, width, codebook = arguments.groups()
            row = (kernel.registers, kernel.stack, kernel.spill_stores, kernel.spill_loads)
            rows.append((int(bits), codebook, int(width), kernel.arch, *row))
    lines = [
        "| bits | codebook | N of a tile | code for | registers | stack, bytes | spill stores | spill loads |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for bits, codebook, *rest in sorted(rows):
        cells = [str(bits) if bits else "at run time", _CODEBOOKS[codebook], *map(str, rest)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
