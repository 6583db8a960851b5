"""The floor of dense weights: gate, up and down as grouped products, with nothing decoded and no activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.bench_kernels.settings import LayerShape
from glm53_exl3.bench_kernels.timing import Call

Method = Literal["torch._grouped_mm", "a loop of matmuls"]
#: Compute capabilities that torch has a grouped kernel for (2.11); elsewhere it copies the sizes of the groups to the
#: host, which no CUDA graph can hold.
_GROUPED_CAPABILITIES: Final = (9, 10)


@dataclass(frozen=True)
class DenseWeights:
    """Random dense experts.

    Attributes:
        gate: `[E, hidden, intermediate]`.
        up: as gate.
        down: `[E, intermediate, hidden]`.
        method: how their products are made.
    """

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    method: Method

    def prepare(self, batch: Batch) -> Call:
        """The products of a batch whose rows are gathered and sorted by expert already."""
        ids = batch.ids.long().flatten()
        order = ids.argsort(stable=True)
        rows = batch.x[order // batch.ids.shape[1]].to(self.gate.dtype)
        counts = torch.bincount(ids, minlength=self.gate.shape[0])
        if self.method == "torch._grouped_mm":
            ends = counts.cumsum(0).int()

            def grouped() -> torch.Tensor:
                torch._grouped_mm(rows, self.gate, offs=ends)
                up = torch._grouped_mm(rows, self.up, offs=ends)
                result: torch.Tensor = torch._grouped_mm(up, self.down, offs=ends)
                return result

            return Call(grouped)
        pieces = [(expert, piece) for expert, piece in enumerate(rows.split(counts.tolist())) if len(piece)]

        def loop() -> torch.Tensor:
            for expert, piece in pieces:
                torch.mm(piece, self.gate[expert])
                last = torch.mm(torch.mm(piece, self.up[expert]), self.down[expert])
            return last

        return Call(loop)


def dense_bytes(shape: LayerShape, device: torch.device) -> int:
    """Bytes of the dense weights of a layer."""
    return 3 * shape.experts * shape.hidden * shape.intermediate * _dtype(device).itemsize


def _dtype(device: torch.device) -> torch.dtype:
    # A bf16 product on a CPU without bf16 units takes thirty times as long as one in fp32.
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def method_for(device: torch.device) -> Method:
    """How this device makes grouped products."""
    if device.type != "cuda" or not hasattr(torch, "_grouped_mm"):
        return "a loop of matmuls"
    major, _ = torch.cuda.get_device_capability(device)
    return "torch._grouped_mm" if major in _GROUPED_CAPABILITIES else "a loop of matmuls"


def random_dense(shape: LayerShape, device: torch.device) -> DenseWeights:
    """Weights that keep activations near 1; their values do not change the time."""

    def draw(rows: int, columns: int) -> torch.Tensor:
        drawn = torch.empty(shape.experts, rows, columns, dtype=_dtype(device), device=device)
        return drawn.normal_(std=rows**-0.5)

    wide, narrow = shape.hidden, shape.intermediate
    return DenseWeights(draw(wide, narrow), draw(wide, narrow), draw(narrow, wide), method_for(device))
