"""Tables of kernels for people, one function for each product."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from resources import KernelResources

#: Template arguments of exl3_moe_kernel in its mangled name: bits (0: read at run time), columns of a tile, codebook.
_MOE_KERNEL: Final = re.compile(r"exl3_moe_kernelILi(\d)ELi(\d+)ELi(\d)E")
_MOE_CODEBOOKS: Final = {"1": "mcg", "2": "mul1"}
#: A kernel of glm53_exl3::native: the length of its name; what follows begins with the name.
_NATIVE_KERNEL: Final = re.compile(r"_ZN10glm53_exl36nativeL?(\d+)(\w+)")
#: Its template arguments: bits (0: read for each expert), codebook, numbers of its own.
_NATIVE_ARGUMENTS: Final = re.compile(r"ILi(\d+)ELNS0_8CodebookE(\d)E((?:Li\d+E)*)E")
_NATIVE_CODEBOOKS: Final = {"0": "mcg", "1": "mul1", "2": "3inst"}
#: What these numbers are.
_CUTS: Final = {
    "gate_up": "{} warps, {} stages",
    "down": "{} warps, {} stages",
    "gate_up_all": "up to {} rows",
    "down_all": "up to {} rows",
}
_AT_RUN_TIME: Final = "at run time"


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
        cells = [str(bits) if bits else _AT_RUN_TIME, _MOE_CODEBOOKS[codebook], *map(str, rest)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def native_table(kernels: Iterable[KernelResources]) -> str:
    """Markdown: a row for each kernel of a variant, and for each that all variants share."""
    # Shared kernels are in every unit; rows that are the same in all of them are one.
    rows = {(*_native_name(kernel.name), kernel) for kernel in kernels if _NATIVE_KERNEL.match(kernel.name)}
    lines = [
        "| kernel | bits | codebook | a block | code for | registers | stack, bytes | spill stores | spill loads "
        "| shared memory |",
        "| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for *name, kernel in sorted(rows, key=lambda row: (*row[:-1], row[-1].arch)):
        sizes = (kernel.registers, kernel.stack, kernel.spill_stores, kernel.spill_loads, kernel.shared)
        lines.append(f"| {' | '.join([*name, kernel.arch, *map(str, sizes)])} |")
    return "\n".join(lines)


def _native_name(mangled: str) -> tuple[str, str, str, str]:
    """Name, bits, codebook and cut of a kernel; all but the name are empty where it is no template."""
    start = _NATIVE_KERNEL.match(mangled)
    assert start is not None
    length, rest = int(start[1]), start[2]
    name = rest[:length]
    arguments = _NATIVE_ARGUMENTS.match(rest[length:])
    if arguments is None:
        return name, "", "", ""
    bits, codebook = arguments[1], arguments[2]
    numbers = re.findall(r"Li(\d+)E", arguments[3])
    return name, _AT_RUN_TIME if bits == "0" else bits, _NATIVE_CODEBOOKS[codebook], _CUTS[name].format(*numbers)
