"""How large the memory is that a call of the native kernels works in.

Without torch: the memory plan counts by it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Bound of the scratch; larger batches are run in pieces. For GLM-5.3-Flash 2,048 tokens take 321 MiB.
MAX_BYTES: Final = 704 << 20
#: Choices of a call that the decode path may take, `kMaxDecodeChoices` of sizes.h, as the other numbers.
DECODE_CHOICES: Final = 1024
#: Rows that an expert has on average, at most, in a call that takes it; `kDecodeRows` of sizes.h.
DECODE_ROWS: Final = 8
_UNITS: Final = 256
_SHORT_ROWS: Final = 56
_PIECE_ROWS: Final = 64
_BLOCK: Final = 128
_ALIGNMENT: Final = 256


@dataclass(frozen=True)
class Scratch:
    """What the scratch depends on.

    Attributes:
        hidden: width of the activations.
        intermediate: width between up and down, of this rank.
        experts: local experts.
        top_k: experts a token.
        tokens: of one piece of a batch.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    tokens: int

    @property
    def choices(self) -> int:
        """Rows of a piece: experts of its tokens."""
        return self.tokens * self.top_k

    @property
    def counter_bytes(self) -> int:
        """Bytes at the beginning that are 0 between calls, as many for every batch."""
        arrived = DECODE_CHOICES * (self.hidden // _BLOCK)
        return _aligned(arrived * 4, 2 * DECODE_CHOICES * 4, _UNITS * 4)

    @property
    def num_bytes(self) -> int:
        """Bytes, as `scratch_bytes` of scratch_layout.h.

        Counters come first. After them either path has, for each choice, its activations twice rotated in fp16 and what
        lies between up and down; decoding a few also the fp32 output of each choice and sums over a piece of the input,
        many also their order.
        """
        choices, few = self.choices, min(self.choices, DECODE_CHOICES)
        decode = self._rows(few) + _aligned(few * self.hidden * 4, _UNITS * 2 * _BLOCK * 4)
        tall, short = choices // (_SHORT_ROWS + 1), min(choices, self.experts)
        order = _aligned(choices * 4, choices * 4, choices * 4, tall * 16, short * 16, 12)
        return self.counter_bytes + max(decode, order + self._rows(choices))

    def _rows(self, choices: int) -> int:
        return _aligned(choices * self.hidden * 2, choices * self.hidden * 2, choices * self.intermediate * 2)


def _aligned(*sizes: int) -> int:
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


def scratch_for(hidden: int, intermediate: int, experts: int, top_k: int, max_tokens: int) -> Scratch:
    """The largest useful scratch within :data:`MAX_BYTES`.

    Args:
        hidden, intermediate, experts, top_k: see :class:`Scratch`.
        max_tokens: largest batch; larger ones are run in pieces.
    """
    row_bytes = (4 * hidden + 2 * intermediate + 13) * top_k
    # Pieces of more tokens than the decode path takes are whole 64s, so that few tiles are left half empty.
    fit = max(1, MAX_BYTES // row_bytes)
    tokens = min(max_tokens, fit // _PIECE_ROWS * _PIECE_ROWS or fit)
    return Scratch(hidden, intermediate, experts, top_k, max(1, tokens))
