"""What was measured, as data and as the JSON of a receipt. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.figures import Spread
from glm53_exl3.bench.receipt import KERNELS_KIND
from glm53_exl3.bench_kernels.floors import floor_microseconds
from glm53_exl3.bench_kernels.settings import KernelBenchSettings

SCHEMA: Final = 1
NATIVE: Final = "native"
#: `graph`: replays of a CUDA graph between events of the GPU. `wall`: calls from Python, waited for.
Clock = Literal["graph", "wall"]


@dataclass(frozen=True)
class Cell:
    """One backend at one batch size.

    Attributes:
        microseconds: of a call.
        clock: what measured them.
        error: largest difference from the reference relative to its largest value, over all calls of a replay.
        tolerance: largest error that is right; None where outputs mean nothing.
    """

    microseconds: Spread
    clock: Clock
    error: float
    tolerance: float | None

    @property
    def is_right(self) -> bool:
        """Whether the outputs are those of the reference, where they are to be."""
        return self.tolerance is None or self.error <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """As the receipt has it; an error that is not finite or means nothing is null."""
        return {
            "microseconds": asdict(self.microseconds),
            "clock": self.clock,
            "error": self.error if self.tolerance is not None and math.isfinite(self.error) else None,
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True)
class Row:
    """One batch size.

    Attributes:
        tokens: T.
        calls: calls of a replay, each with a routing of its own.
        experts: different experts that a call touches, on average.
        weight_bytes: bytes of their trellises and scales.
        footprint_bytes: bytes of weights that all calls of a replay touch together.
        cold: whether these cannot stay in the L2 cache until the next replay; None where its size is not known.
        gemm: microseconds of the dense products; None where they were left out.
        cells: of each backend, by its name.
    """

    tokens: int
    calls: int
    experts: float
    weight_bytes: float
    footprint_bytes: int
    cold: bool | None
    gemm: Spread | None
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class KernelBench:
    """One measurement.

    Attributes:
        date: when it began, ISO 8601 in UTC.
        settings: what was asked for.
        machine: where it ran, as `machine.py` describes it.
        layers: different layers that calls took turns on.
        bandwidth: bytes a second of a copy within memory, read and written together.
        gemm: how the dense products were made, or why they were not.
        details: of each backend, how it was built.
        left_out: backends that cannot run here, with the reason.
        rows: in the order of the settings.
    """

    date: str
    settings: KernelBenchSettings
    machine: Mapping[str, Any]
    layers: int
    bandwidth: Spread
    gemm: str
    details: Mapping[str, str]
    left_out: Mapping[str, str]
    rows: tuple[Row, ...]

    def bytes_floor(self, row: Row) -> float:
        """Microseconds of reading the weights of a row at the bandwidth of a copy."""
        return floor_microseconds(row.weight_bytes, self.bandwidth.p50)

    def to_json(self) -> dict[str, Any]:
        """The receipt."""
        return {
            "kind": KERNELS_KIND,
            "schema": SCHEMA,
            "date": self.date,
            "machine": dict(self.machine),
            "settings": self.settings.to_json(),
            "layers": self.layers,
            "copy_bytes_per_second": asdict(self.bandwidth),
            "gemm": self.gemm,
            "details": dict(self.details),
            "left_out": dict(self.left_out),
            "rows": [self._row_json(row) for row in self.rows],
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
        return {
            "tokens": row.tokens,
            "calls": row.calls,
            "experts": row.experts,
            "weight_bytes": row.weight_bytes,
            "footprint_bytes": row.footprint_bytes,
            "cold": row.cold,
            "bytes_floor_microseconds": self.bytes_floor(row),
            "gemm_microseconds": None if row.gemm is None else asdict(row.gemm),
            "over_native": over_native(row),
            "backends": {name: cell.to_json() for name, cell in row.cells.items()},
        }


def over_native(row: Row) -> dict[str, float]:
    """How many times the median of the native backend each other one takes; empty without it."""
    native = row.cells.get(NATIVE)
    if native is None:
        return {}
    others = {name: cell.microseconds.p50 for name, cell in row.cells.items() if name != NATIVE}
    return {name: middle / native.microseconds.p50 for name, middle in others.items()}


def require_right(result: KernelBench) -> None:
    """Refuse a measurement of something that does not compute the layer.

    Raises:
        BenchError: `kernel-wrong`, naming each backend and batch size.
    """
    wrong = [
        f"{name} at T={row.tokens} by {cell.error:.2g}"
        for row in result.rows
        for name, cell in row.cells.items()
        if not cell.is_right
    ]
    if wrong:
        tolerances = {cell.tolerance for row in result.rows for cell in row.cells.values() if cell.tolerance}
        raise BenchError(
            "kernel-wrong",
            f"outputs differ from the reference: {', '.join(wrong)}",
            expected=f"errors up to {' or '.join(f'{each:g}' for each in sorted(tolerances))} of the largest value",
            hint="its times mean nothing; rebuild the extension (docs/extension.md), or report the table and --seed",
        )
