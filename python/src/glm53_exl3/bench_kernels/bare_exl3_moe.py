"""`exl3_moe` of the extension alone, on rows that are sorted already: what the rest of a backend's call costs more.

Casting, sorting and zeroing are done before the clock starts. The scratch is its own and holds as many rows as are
useful, so that cutting a batch to fit a smaller scratch counts as a cost of the backend too.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import torch

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.bench_kernels.timing import Call
from glm53_exl3.kernels.exllamav3.extension import load_extension
from glm53_exl3.kernels.exllamav3.kernel import require_codebook
from glm53_exl3.kernels.exllamav3.shape import MAX_ROWS, TILE_ROWS
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.interface import FixedWeights, PackedLayer
from glm53_exl3.kernels.tables import AddressTables

_SILU_GATED: Final = 0
#: As the backend passes it: a known number would have to be read back from the GPU.
_ACTIVE_UNKNOWN: Final = -1


class BareExl3Moe:
    """The kernel on one layer.

    Attributes:
        rows: tokens of one launch.

    Args:
        layer: weights on a GPU.
        max_tokens: largest batch.
        scratch: of a layer of the same shape, to be shared; made when empty.

    Raises:
        KernelError: as the exllamav3 backend, for a missing extension or a codebook without kernels.
    """

    def __init__(self, layer: PackedLayer, max_tokens: int, scratch: list[torch.Tensor]) -> None:
        require_codebook(layer)
        self._extension: ModuleType = load_extension()
        device = layer.gate.device
        require_arch(self._extension, torch.cuda.get_device_capability(device))
        self._experts = layer.gate.num_experts
        self._bits = [one.bits for one in (layer.gate, layer.up, layer.down)]
        self._mcg, self._limit = layer.gate.codebook == "mcg", layer.limit
        self._tables = AddressTables(FixedWeights(layer)).tables
        self.rows = min(MAX_ROWS, -(-max_tokens // TILE_ROWS) * TILE_ROWS)
        if not scratch:
            concurrency = max(1, int(self._extension.exl3_moe_max_concurrency(device.index or 0)))
            widths = (layer.gate.suh.shape[1],) * 2 + (layer.gate.svh.shape[1],) * 2
            scratch += [
                torch.empty(concurrency, self.rows, width, dtype=torch.float16, device=device) for width in widths
            ]
        self._scratch = scratch

    def prepare(self, batch: Batch) -> Call:
        """A call that adds the outputs of a batch to sums that `reset` zeroes."""
        sums = torch.zeros(batch.x.shape, dtype=torch.float32, device=batch.x.device)
        states = batch.x.half()
        tokens = len(batch.x)
        pieces = [
            (states[begin:end], sums[begin:end], *self._sort(batch, begin, end))
            for begin in range(0, tokens, self.rows)
            for end in (min(begin + self.rows, tokens),)
        ]

        def run() -> torch.Tensor:
            for piece in pieces:
                self._launch(*piece)
            return sums

        def reset() -> None:
            sums.zero_()

        return Call(run, reset)

    def _sort(self, batch: Batch, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rows of each expert int64 `[E + 1]`, then of each row its token int64 and its weight fp16."""
        ids = batch.ids[begin:end].long().flatten()
        order = ids.argsort(stable=True)
        count = torch.bincount(ids, minlength=self._experts + 1)
        weight = batch.weights[begin:end].flatten()[order].half()
        return count, order // batch.ids.shape[1], weight

    def _launch(
        self, states: torch.Tensor, sums: torch.Tensor, count: torch.Tensor, token: torch.Tensor, weight: torch.Tensor
    ) -> None:
        codebook = (self._mcg, not self._mcg)
        self._extension.exl3_moe(
            states,
            sums,
            count,
            token,
            weight,
            *self._scratch,
            _SILU_GATED,
            *self._bits,
            *self._tables,
            *codebook,
            *codebook,
            *codebook,
            self._limit,
            _ACTIVE_UNKNOWN,
        )
