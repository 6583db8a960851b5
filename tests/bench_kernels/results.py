"""Results of `bench kernels` made by hand."""

from __future__ import annotations

from typing import Any

from glm53_exl3.bench.figures import Spread
from glm53_exl3.bench_kernels.result import Cell, Clock, KernelBench, Row
from glm53_exl3.bench_kernels.settings import Options, read_options


def spread(middle: float) -> Spread:
    return Spread(middle - 1, middle, middle + 2, 30)


def cell(middle: float, error: float = 1e-3, clock: Clock = "graph") -> Cell:
    return Cell(spread(middle), clock, error, 5e-3)


def row(tokens: int, *, cold: bool | None = True, gemm: float | None = 150.0, **cells: Cell) -> Row:
    dense = None if gemm is None else spread(gemm)
    return Row(tokens, 8, 8.0, 50e6, 400_000_000, cold, dense, cells)


GPU: dict[str, Any] = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "sms": 132,
    "l2_bytes": 60 << 20,
    "memory_bytes": 140 << 30,
    "driver": "580.1",
}


def result(*rows: Row, gpu: bool = True, left_out: dict[str, str] | None = None) -> KernelBench:
    machine = {
        "cpu": "a CPU",
        "threads": 2,
        "torch": "2.11.0",
        "cuda": "13.0" if gpu else None,
        "gpu": GPU if gpu else None,
        "extension": {"revision": "r" * 8, "arch_list": "9.0a", "moe_arity": 30} if gpu else None,
    }
    names = [name for each in rows for name in each.cells]
    return KernelBench(
        "2026-12-01T00:00:00+00:00",
        read_options(Options(bits="2,3,2"), "glm-5.3-flash"),
        machine,
        1,
        Spread(3.9e12, 4e12, 4.1e12, 20),
        "torch._grouped_mm, bfloat16",
        dict.fromkeys(names, "built"),
        left_out or {},
        rows,
    )
