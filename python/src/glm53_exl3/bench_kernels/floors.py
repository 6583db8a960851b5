"""What a batch has to read at least, and how long that takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glm53_exl3.bench_kernels.settings import LayerShape, Routing

_SCALE_BYTES: Final = 2
_BITS_A_BYTE: Final = 8
#: Calls are rotated until they touch this many times the L2 cache, so that weights are read from memory.
COLD: Final = 4
MOST_CALLS: Final = 32
#: Tokens of all calls of a replay together beyond which more routings say no more.
_ENOUGH_TOKENS: Final = 256
#: Different routings that a replay of few tokens averages over.
_ROUTINGS: Final = 8


def expert_bytes(shape: LayerShape, bits: Sequence[int]) -> int:
    """Bytes of one expert: trellises of gate, up and down with `bits` a weight, and fp16 suh and svh of each."""
    weights = shape.hidden * shape.intermediate
    scales = (shape.hidden + shape.intermediate) * _SCALE_BYTES
    return sum(weights * each // _BITS_A_BYTE + scales for each in bits)


def layer_bytes(shape: LayerShape, bits: Sequence[int]) -> int:
    """Bytes of all experts of a layer."""
    return shape.experts * expert_bytes(shape, bits)


def expected_experts(shape: LayerShape, tokens: int, routing: Routing = "uniform") -> float:
    """Different experts that a batch touches on average, by uniform routing: E * (1 - (1 - k/E)^T).

    By skewed routing they are fewer, and this is a bound.
    """
    if routing == "same":
        return shape.top_k
    return shape.experts * (1 - (1 - shape.top_k / shape.experts) ** tokens)


def num_calls(shape: LayerShape, bits: Sequence[int], tokens: int, l2_bytes: int, routing: Routing = "uniform") -> int:
    """Calls, each with a routing of its own, that one replay makes."""
    touched = max(1.0, expected_experts(shape, tokens, routing) * expert_bytes(shape, bits))
    averaged = max(1, min(_ROUTINGS, _ENOUGH_TOKENS // tokens))
    return min(MOST_CALLS, max(averaged, int(-(-COLD * l2_bytes // touched))))


def num_layers(shape: LayerShape, bits: Sequence[int], l2_bytes: int) -> int:
    """Different layers that the calls of a replay take turns on: more than one where a layer is small."""
    return min(MOST_CALLS, max(1, -(-COLD * l2_bytes // layer_bytes(shape, bits))))


def is_cold(footprint_bytes: int, l2_bytes: int) -> bool:
    """Whether what a replay touches cannot stay in the L2 cache until the next."""
    return footprint_bytes >= COLD * l2_bytes


def floor_microseconds(num_bytes: float, bytes_per_second: float) -> float:
    """Time of moving bytes at a bandwidth, in microseconds."""
    return num_bytes / bytes_per_second * 1e6
