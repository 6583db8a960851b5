"""Layers of random EXL3 experts, and batches for them, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from glm53_exl3.bench_kernels.settings import KernelBenchSettings, LayerShape, Routing
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.format.tensors import TILE
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer

_HALF_WORD: Final = 1 << 15
#: Prime, so that seeds and numbers of calls do not give the same generator twice.
_STRIDE: Final = 7919


@dataclass(frozen=True)
class Batch:
    """What one call gets.

    Attributes:
        x: activations bf16 `[T, hidden]`.
        ids: int32 `[T, top_k]`, all different within a token.
        weights: fp32 `[T, top_k]`, of sum 1.
    """

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor


def random_layer(settings: KernelBenchSettings, number: int, device: torch.device) -> PackedLayer:
    """A layer whose every trellis word is drawn: each bit pattern is a valid trellis.

    Args:
        settings: shape, bits, codebook, limit and seed.
        number: of the layer; another has other weights.
        device: where it is.
    """
    shape, codebook = settings.shape, settings.codebook
    generator = torch.Generator(device).manual_seed(settings.seed * _STRIDE + number)
    gate, up, down = settings.bits
    wide, narrow = shape.hidden, shape.intermediate
    return PackedLayer(
        f"random layer {number}",
        random_experts(shape.experts, wide, narrow, gate, codebook, generator),
        random_experts(shape.experts, wide, narrow, up, codebook, generator),
        random_experts(shape.experts, narrow, wide, down, codebook, generator),
        settings.limit,
    )


def random_experts(
    experts: int, rows: int, columns: int, bits: int, codebook: Codebook, generator: torch.Generator
) -> PackedExperts:
    """Experts `[rows, columns]` on the device of the generator."""
    trellis = torch.randint(
        -_HALF_WORD,
        _HALF_WORD,
        (experts, rows // TILE, columns // TILE, TILE * bits),
        dtype=torch.int16,
        device=generator.device,
        generator=generator,
    )
    # Values of a codebook have a variance of about 1, so that this keeps activations near 1.
    return PackedExperts(
        trellis, _signs(experts, rows, rows**-0.5, generator), _signs(experts, columns, 1.0, generator), codebook
    )


def _signs(experts: int, width: int, scale: float, generator: torch.Generator) -> torch.Tensor:
    drawn = torch.randint(0, 2, (experts, width), device=generator.device, generator=generator)
    return ((drawn * 2 - 1) * scale).half()


def random_batch(settings: KernelBenchSettings, tokens: int, number: int, device: torch.device) -> Batch:
    """Activations and routing of one call.

    Args:
        settings: shape, routing and seed.
        tokens: T.
        number: of the call; another has other activations and other experts.
        device: where it is.
    """
    shape = settings.shape
    generator = torch.Generator(device).manual_seed((settings.seed * _STRIDE + tokens) * _STRIDE + number)
    x = torch.randn(tokens, shape.hidden, device=device, generator=generator)
    ids = _route(settings.routing, shape, tokens, generator)
    weights = torch.rand(tokens, shape.top_k, device=device, generator=generator) + 0.1
    return Batch(x.bfloat16(), ids.int(), weights / weights.sum(-1, keepdim=True))


def _route(routing: Routing, shape: LayerShape, tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Experts int64 `[T, top_k]`, drawn without replacement: the largest of log-probabilities plus Gumbel noise."""
    rows = 1 if routing == "same" else tokens
    uniform = torch.rand(rows, shape.experts, device=generator.device, generator=generator)
    scores = -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-6)))
    if routing == "skewed":
        scores -= torch.log1p(torch.arange(shape.experts, device=generator.device))
    chosen: torch.Tensor = scores.topk(shape.top_k).indices
    return chosen.expand(tokens, -1)


def touched_experts(batch: Batch) -> list[int]:
    """Experts that at least one token of a batch goes to, in rising order."""
    found: list[int] = batch.ids.unique().tolist()
    return found
