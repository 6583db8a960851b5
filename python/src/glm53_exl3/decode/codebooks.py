"""The three codebooks: 65,536 states of a trellis to fp16 values.

Each is a hash of the state, so nothing is stored in a pack. All integer arithmetic is modulo 2**32
(turboderp-org/exllamav3 1.4.5, `exllamav3_ext/quant/codebook.cuh`):

- `3inst` and `mcg`: x = state * multiplier + increment; the bits outside a mask are replaced by those of 0.9219,
  which leaves two fp16 numbers of magnitude below 2 in one word; the value is their fp16 sum.
- `mul1`: the four bytes of state * multiplier are summed; one fused fp16 multiply-add centres and scales the sum.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from glm53_exl3.format.codebooks import MARKER_VALUES, Codebook, require_codebook

#: Bits of the state a value depends on.
STATE_BITS: Final = 16
STATES: Final = 1 << STATE_BITS

_WORD: Final = 0xFFFFFFFF
_SUM_MASK: Final = 0x8FFF8FFF
_SUM_BASE: Final = 0x3B603B60
_SUM_HASH: Final[dict[str, tuple[int, int]]] = {
    "3inst": (89226354, 64248484),
    "mcg": (MARKER_VALUES["mcg"] & _WORD, 0),
}
_MUL1_SCALE: Final = 0.00676727294921875
_MUL1_SHIFT: Final = -10.3828125
_MUL1_BASE: Final = 1024.0


def _sum_table(multiplier: int, increment: int) -> Tensor:
    word = (torch.arange(STATES, dtype=torch.int64) * multiplier + increment) & _WORD
    word = (word & _SUM_MASK) ^ _SUM_BASE
    low, high = (_half_from_bits(word & 0xFFFF), _half_from_bits(word >> 16))
    # fp32 holds the sum of two such halves exactly, so the conversion is the only rounding, as in an fp16 add.
    return (low.float() + high.float()).half()


def _half_from_bits(bits: Tensor) -> Tensor:
    signed = torch.where(bits >= 0x8000, bits - 0x10000, bits)
    return signed.to(torch.int16).view(torch.float16)


def _mul1_table() -> Tensor:
    word = (torch.arange(STATES, dtype=torch.int64) * (MARKER_VALUES["mul1"] & _WORD)) & _WORD
    total = sum((word >> shift) & 0xFF for shift in (0, 8, 16, 24))
    assert isinstance(total, Tensor)
    # Product and sum need 22 bits at most: fp32 is exact and the conversion rounds once, as the fused fp16 operation.
    return ((total.float() + _MUL1_BASE) * _MUL1_SCALE + _MUL1_SHIFT).half()


@lru_cache(maxsize=32)
def _table(codebook: Codebook, device: torch.device) -> Tensor:
    # Outside inference mode: a cached inference tensor could not be used by a later caller under autograd.
    with torch.inference_mode(False):
        table = _mul1_table() if codebook == "mul1" else _sum_table(*_SUM_HASH[codebook])
        return table.to(device)


def codebook_table(codebook: str, device: torch.device | str = "cpu") -> Tensor:
    """Values of all states of a codebook, fp16 `[65536]`, cached by device: do not write to it.

    Raises:
        FormatError: `codebook-unknown`.
    """
    return _table(require_codebook(codebook), torch.device(device))


def lookup(states: Tensor, codebook: str) -> Tensor:
    """Values fp16 of states int32 or int64 in [0, 65535], any shape.

    Raises:
        FormatError: `codebook-unknown`.
    """
    table = codebook_table(codebook, states.device)
    return table.index_select(0, states.reshape(-1)).view(states.shape)
