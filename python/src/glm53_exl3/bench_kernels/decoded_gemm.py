"""The other way to run a batch: decode the experts it needs to 16 bits, then dense products of their rows.

exllamav3's kernels decode and transform. torch has grouped products of a GPU for bf16 alone, and `reconstruct` writes
fp16. Where torch has them, products read these bits as bf16, and all rows are scaled by the vectors of one expert: the
same bytes and operations as a path that has both, and as few launches, but outputs that mean nothing. Elsewhere it is a
product an expert, by cuBLAS in fp16, with the outputs of the layer. Rows are sorted before the clock starts: this is a
floor, and meant to be low.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import silu

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.bench_kernels.timing import Call
from glm53_exl3.kernels.exllamav3.extension import load_extension
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer

#: Without grouped products, experts are decoded in turn into so many matrices, so that no product waits for the next.
_MATRICES: Final = 4


def buffer_bytes(layer: PackedLayer) -> int:
    """Bytes of one projection of all experts in fp16, which grouped products read."""
    return 2 * layer.gate.num_experts * layer.gate.suh.shape[1] * layer.gate.svh.shape[1]


@dataclass(frozen=True)
class _Groups:
    """Rows of a batch that are sorted by expert.

    Attributes:
        experts: those with rows.
        lengths: rows of each.
        ends: int32 `[len(experts)]` where they end.
    """

    experts: list[int]
    lengths: list[int]
    ends: torch.Tensor


class DecodedGemm:
    """Decoding and products of one layer.

    Args:
        layer: weights on a GPU.
        grouped: whether products are grouped, and so not those of the layer.
        buffer: fp16 matrices of a layer of the same shape, to be shared; made when empty.

    Raises:
        KernelError: as the exllamav3 backend, for a missing extension.
    """

    def __init__(self, layer: PackedLayer, buffer: list[torch.Tensor], *, grouped: bool) -> None:
        self._extension = load_extension()
        device = layer.gate.device
        require_arch(self._extension, torch.cuda.get_device_capability(device))
        self._layer, self._grouped = layer, grouped
        weights = layer.gate.suh.shape[1] * layer.gate.svh.shape[1]
        if not buffer:
            matrices = layer.gate.num_experts if grouped else _MATRICES
            buffer.append(torch.empty(matrices, weights, dtype=torch.float16, device=device))
        self._matrices = buffer[0]

    def prepare(self, batch: Batch) -> Call:
        """A call on rows that are sorted by expert already; its output is bf16 as the plugin's."""
        tokens, top_k = batch.ids.shape
        ids = batch.ids.long().flatten()
        order = ids.argsort(stable=True)
        token, place = order // top_k, order.argsort()
        counts = torch.bincount(ids, minlength=self._layer.gate.num_experts)
        touched = counts.nonzero().flatten()
        lengths = counts[touched]
        groups = _Groups(touched.tolist(), lengths.tolist(), lengths.cumsum(0).int())
        weights = batch.weights.half().unsqueeze(1)
        states, limit = batch.x.half(), self._layer.limit

        def run() -> torch.Tensor:
            rows = states[token]
            gate = silu(self._product(self._layer.gate, rows, groups), inplace=True)
            up = self._product(self._layer.up, rows, groups)
            if limit:
                gate.clamp_(max=limit)
                up.clamp_(-limit, limit)
            down = self._product(self._layer.down, gate.mul_(up), groups)
            chosen = down[place].view(tokens, top_k, -1)
            return torch.bmm(weights, chosen).squeeze(1).bfloat16()

        return Call(run)

    def _product(self, packed: PackedExperts, rows: torch.Tensor, groups: _Groups) -> torch.Tensor:
        """fp16 `[rows, out]` of sorted rows fp16 `[rows, in]`."""
        return (self._of_all if self._grouped else self._of_each)(packed, rows, groups)

    def _of_all(self, packed: PackedExperts, rows: torch.Tensor, groups: _Groups) -> torch.Tensor:
        shape = packed.suh.shape[1], packed.svh.shape[1]
        matrices = self._matrices.view(-1, *shape)
        for place, expert in enumerate(groups.experts):
            self._decode(packed, expert, matrices[place])
        rotated = torch.empty_like(rows)
        self._extension.had_r_128(rows, rotated, packed.suh[0], None, 1.0)
        dense = matrices[: len(groups.experts)].view(torch.bfloat16)
        product = torch._grouped_mm(rotated.view(torch.bfloat16), dense, offs=groups.ends).view(torch.float16)
        self._extension.had_r_128(product, product, None, packed.svh[0], 1.0)
        return product

    def _of_each(self, packed: PackedExperts, rows: torch.Tensor, groups: _Groups) -> torch.Tensor:
        shape = packed.suh.shape[1], packed.svh.shape[1]
        rotated = torch.empty_like(rows)
        product = torch.empty(len(rows), shape[1], dtype=torch.float16, device=rows.device)
        begin = 0
        for number, (expert, length) in enumerate(zip(groups.experts, groups.lengths, strict=True)):
            matrix, mine = self._matrices[number % _MATRICES].view(shape), slice(begin, begin + length)
            self._decode(packed, expert, matrix)
            self._extension.had_r_128(rows[mine], rotated[mine], packed.suh[expert], None, 1.0)
            torch.mm(rotated[mine], matrix, out=product[mine])
            self._extension.had_r_128(product[mine], product[mine], None, packed.svh[expert], 1.0)
            begin += length
        return product

    def _decode(self, packed: PackedExperts, expert: int, matrix: torch.Tensor) -> None:
        flags = (packed.bits, packed.codebook == "mcg", packed.codebook == "mul1")
        self._extension.reconstruct(matrix, packed.trellis[expert], *flags)
