"""The reference backend: plain torch on any device, exact and slow.

It decodes the trellis to dense weights and multiplies. With `decode="load"` it holds these, 16 bits a weight on a GPU
and 32 on a CPU, eight or sixteen times the size of a 2-bit pack; with `decode="call"` it holds the trellis and
decodes the experts of each batch.
"""

from __future__ import annotations

import torch

from glm53_exl3.decode import dequantize, moe_dense_reference
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from glm53_exl3.kernels.settings import Decode


def decode_experts(packed: PackedExperts, dtype: torch.dtype) -> torch.Tensor:
    """Dense weights `[E, in, out]` of one projection."""
    dense = [
        dequantize(packed.trellis[expert], packed.suh[expert], packed.svh[expert], packed.codebook, dtype=dtype)
        for expert in range(packed.num_experts)
    ]
    return torch.stack(dense)


def _select(packed: PackedExperts, experts: list[int]) -> PackedExperts:
    chosen = tuple(packed.trellis[expert] for expert in experts)
    return PackedExperts(chosen, packed.suh[experts], packed.svh[experts], packed.codebook)


class ReferenceKernel:
    """Routed experts by dense matrix products.

    Args:
        layer: packed weights. Nothing of it is kept when `decode` is `load`.
        dtype: dtype of the products; the activation and the sum over experts are fp32.
        decode: `load` or `call`.
    """

    def __init__(self, layer: PackedLayer, dtype: torch.dtype, decode: Decode) -> None:
        self._dtype = dtype
        self._limit = layer.limit
        self._packed: PackedLayer | None = None
        self._dense: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        if decode == "load":
            projections = (layer.gate, layer.up, layer.down)
            gate, up, down = (decode_experts(packed, dtype) for packed in projections)
            self._dense = (gate, up, down)
        else:
            self._packed = layer

    @property
    def backend(self) -> str:
        """Name of the backend, for logs."""
        return "reference"

    @property
    def keeps_packed_weights(self) -> bool:
        """Whether the packed tensors must stay alive."""
        return self._packed is not None

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """See :class:`glm53_exl3.kernels.interface.MoEKernel`."""
        if self._dense is not None:
            gate, up, down = self._dense
            return moe_dense_reference(x, topk_ids, topk_weights, gate, up, down, self._limit).to(x.dtype)
        assert self._packed is not None
        return self._decode_and_run(self._packed, x, topk_ids, topk_weights)

    def _decode_and_run(
        self, layer: PackedLayer, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        """One expert at a time, so that at most one is dense at once."""
        output = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in torch.unique(topk_ids).tolist():
            if not 0 <= expert < layer.gate.num_experts:
                continue
            gate, up, down = (
                decode_experts(_select(packed, [expert]), self._dtype) for packed in (layer.gate, layer.up, layer.down)
            )
            chosen = torch.where(topk_ids == expert, 0, -1)
            output += moe_dense_reference(x, chosen, topk_weights, gate, up, down, self._limit)
        return output.to(x.dtype)
