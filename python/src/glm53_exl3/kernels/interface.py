"""What a kernel backend gets and gives.

A backend is built once a layer, after the weights are loaded, and then called for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.format.tensors import TILE


@dataclass(frozen=True)
class PackedExperts:
    """One projection of all local experts of a layer, as stored.

    Attributes:
        trellis: int16 `[E, in/16, out/16, 16*bits]`, contiguous; where experts differ in bits one such tensor, without
            the first axis, for each.
        suh: fp16 `[E, in]`.
        svh: fp16 `[E, out]`.
        codebook: of all experts.
    """

    trellis: torch.Tensor | tuple[torch.Tensor, ...]
    suh: torch.Tensor
    svh: torch.Tensor
    codebook: Codebook

    @property
    def num_experts(self) -> int:
        """Local experts."""
        return self.suh.shape[0]

    @property
    def device(self) -> torch.device:
        """Where all of it is."""
        return self.suh.device

    @property
    def rates(self) -> tuple[int, ...]:
        """Bits a weight of each expert."""
        if isinstance(self.trellis, tuple):
            return tuple(one.shape[-1] // TILE for one in self.trellis)
        return (self.trellis.shape[-1] // TILE,) * self.num_experts

    @property
    def bits(self) -> int:
        """Bits a weight of all experts, 0 where they differ."""
        if isinstance(self.trellis, tuple):
            return self.rates[0] if len(set(self.rates)) == 1 else 0
        return self.trellis.shape[-1] // TILE

    @property
    def rate_text(self) -> str:
        """The different bits a weight, for logs, as `2` or `2+3`."""
        return "+".join(map(str, sorted(set(self.rates)) or [self.bits]))


@dataclass(frozen=True)
class PackedLayer:
    """The routed experts of one layer on one rank.

    Attributes:
        name: for messages.
        gate, up: `[hidden, intermediate]` weights of each local expert.
        down: `[intermediate, hidden]` weights of each local expert.
        limit: SwiGLU limit, 0 for none: min(silu(gate), limit) * clamp(up, -limit, limit).
    """

    name: str
    gate: PackedExperts
    up: PackedExperts
    down: PackedExperts
    limit: float = 0.0


class PackedSource(Protocol):
    """The packed weights of a layer where they are now: whoever owns them may move them."""

    def addresses(self) -> tuple[int, ...]:
        """Where the owner's tensors begin; other numbers mean that they were moved."""
        ...

    def packed(self) -> PackedLayer:
        """The weights at these addresses."""
        ...


class FixedWeights:
    """Weights that nobody moves.

    Args:
        layer: the weights.
    """

    def __init__(self, layer: PackedLayer) -> None:
        self._layer = layer

    def addresses(self) -> tuple[int, ...]:
        """See :class:`PackedSource`."""
        return ()

    def packed(self) -> PackedLayer:
        """See :class:`PackedSource`."""
        return self._layer


class MoEKernel(Protocol):
    """Runs the routed experts of one layer."""

    @property
    def backend(self) -> str:
        """Name of the backend, for logs."""
        ...

    @property
    def keeps_packed_weights(self) -> bool:
        """Whether the packed tensors must stay alive."""
        ...

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the chosen experts' outputs.

        Args:
            x: activations `[T, hidden]`.
            topk_ids: integer `[T, k]`, local expert of each choice; anything outside `[0, E)` is skipped.
            topk_weights: fp32 `[T, k]`.

        Returns:
            `[T, hidden]` in the dtype of `x`.
        """
        ...
