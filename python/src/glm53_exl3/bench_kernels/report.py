"""A measurement as lines of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from glm53_exl3.bench.figures import Spread
from glm53_exl3.bench.report import spread_text, table
from glm53_exl3.bench_kernels.result import NATIVE, Cell, KernelBench, Row, over_native
from glm53_exl3.bench_kernels.settings import BARE

_NOTHING: Final = "-"
#: The backend whose call contains the bare kernel.
_AROUND_BARE: Final = "exllamav3"


def head_lines(result: KernelBench) -> list[str]:
    """Machine, layer and floors."""
    settings, shape, machine = result.settings, result.settings.shape, result.machine
    bits = "-".join(map(str, dict.fromkeys(settings.bits) if len(set(settings.bits)) == 1 else settings.bits))
    gpu, extension = machine["gpu"], machine["extension"]
    where = (
        f"{gpu['name']} ({gpu['capability']}), {gpu['sms']} SMs, L2 {gpu['l2_bytes'] / 2**20:.0f} MiB, "
        f"driver {gpu['driver'] or 'not known'}"
        if gpu
        else f"{machine['cpu'] or 'CPU not known'}, {machine['threads']} threads"
    )
    lines = [
        f"machine  {where}, torch {machine['torch']}, CUDA {machine['cuda'] or 'none'}",
        f"layer    hidden {shape.hidden}, intermediate {shape.intermediate}, experts {shape.experts}, "
        f"top {shape.top_k}, bits {bits}, {settings.codebook}, limit {settings.limit:g}",
        f"routing  {settings.routing}, seed {settings.seed}, layers in turn {result.layers}",
        f"bytes    weights of the experts touched, at the {result.bandwidth.p50 / 1e9:.0f} GB/s of a copy",
        f"gemm     gate, up and down over the experts touched: {result.gemm}",
    ]
    if extension:
        lines.append(f"kernels  exllamav3 {extension['revision']}, sm {extension['arch_list']}")
    if native := machine.get("native"):
        lines.append(f"kernels  native {native['version']}, sm {native['arch_list']}")
    return lines


def table_lines(result: KernelBench) -> list[str]:
    """Times in microseconds with their deciles, their ratios to both floors, and errors; then what to know of them."""
    names = list(dict.fromkeys(name for row in result.rows for name in row.cells))
    overhead = {_AROUND_BARE, BARE} <= set(names)
    heading = ["T", "experts", "bytes", "gemm"]
    for name in names:
        heading += [name, "x bytes", "x gemm", "error"]
    others = [name for name in names if name != NATIVE] if NATIVE in names else []
    heading += [f"{name} / {NATIVE}" for name in others]
    heading += [f"{_AROUND_BARE} over {BARE}"] if overhead else []
    rows = [_cells(result, row, names, overhead=overhead) for row in result.rows]
    return ["microseconds of a call, median (p10-p90)", *table(heading, rows), *_notes(result, names)]


def _cells(result: KernelBench, row: Row, names: Sequence[str], *, overhead: bool) -> list[str]:
    floor = result.bytes_floor(row)
    warm = "*" if row.cold is False else ""
    cells = [f"{row.tokens}{warm}", f"{row.experts:.1f}", f"{floor:.1f}", time_text(row.gemm)]
    for name in names:
        cell = row.cells[name]
        middle = cell.microseconds.p50
        cells += [
            time_text(cell.microseconds),
            ratio_text(middle, floor),
            ratio_text(middle, row.gemm.p50 if row.gemm else None),
            error_text(cell),
        ]
    cells += [f"{ratio:.3g}" for ratio in over_native(row).values()]
    return cells + ([overhead_text(row.cells[_AROUND_BARE], row.cells[BARE])] if overhead else [])


def time_text(found: Spread | None) -> str:
    """A time with a tenth of a microsecond where it is short."""
    if found is None:
        return _NOTHING
    if found.p50 >= 1000:
        return spread_text(found)
    return f"{found.p50:.1f} ({found.p10:.1f}-{found.p90:.1f})"


def ratio_text(value: float, floor: float | None) -> str:
    """How many times a floor."""
    return _NOTHING if not floor else f"{value / floor:.3g}"


def error_text(cell: Cell) -> str:
    """An error, loudly when it is too large; nothing where it means nothing."""
    if cell.tolerance is None:
        return _NOTHING
    text = f"{cell.error:.1e}" if math.isfinite(cell.error) else "not finite"
    return text if cell.is_right else f"WRONG {text}"


def overhead_text(whole: Cell, bare: Cell) -> str:
    """What a call takes beyond the kernel in it."""
    more = whole.microseconds.p50 - bare.microseconds.p50
    return f"{more:+.1f} us ({more / bare.microseconds.p50:+.1%})"


def _notes(result: KernelBench, names: Sequence[str]) -> list[str]:
    lines = []
    if any(row.cold is False for row in result.rows):
        lines.append("* the weights of a replay are fewer than four times the L2 cache, which may hold some of them")
    waited = [name for name in names if any(row.cells[name].clock == "wall" for row in result.rows)]
    if waited:
        lines.append(f"by the wall clock, launches and waiting included: {', '.join(waited)}")
    lines += [f"{name}: {result.details[name]}" for name in names]
    return lines + [f"left out: {name}: {reason}" for name, reason in result.left_out.items()]
