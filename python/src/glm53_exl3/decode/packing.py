"""Symbols of a tile to int16 words and back, and the windows of the bit stream that are trellis states.

A tile is a circular stream of 256 symbols of K bits, most significant bit first, cut into 16 * K words of 16 bits;
the two words of each pair are stored swapped, so that a little-endian 32-bit load gives 32 stream bits in order.
The state of symbol t is the 16 bits of the stream that end with symbol t, wrapping at the start: hence any words
are a valid tile (turboderp-org/exllamav3 1.4.5, `quant/pack.cu`, `quant/exl3_dq.cuh`).

Words repeat their alignment to symbols every 16 symbols, which are K words. A run of 16 symbols is called a group;
the position in its group, 0 to 15, is the phase of a symbol.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from glm53_exl3.errors import FormatError
from glm53_exl3.format.tensors import TILE_SYMBOLS, bits_of_words, require_bits

WORD_BITS: Final = 16
#: Symbols in a group, whatever K is.
PHASES: Final = WORD_BITS
GROUPS: Final = TILE_SYMBOLS // PHASES
_WORD_MASK: Final = 0xFFFF


def require_words(words: Tensor, where: str) -> int:
    """Bits a weight of int16 words whose last dimension is one tile.

    Raises:
        FormatError: `trellis-dtype`, `trellis-shape`, `trellis-half-rate` or `bits-range`, naming `where`.
    """
    if words.dtype != torch.int16:
        raise FormatError(
            "trellis-dtype",
            f"{where}: a trellis of dtype {words.dtype}",
            expected="torch.int16",
            found=str(words.dtype),
            hint="load the trellis as stored, without a cast",
        )
    if words.dim() == 0:
        raise FormatError(
            "trellis-shape",
            f"{where}: a trellis without dimensions",
            expected="a last dimension of 16*bits",
            hint="pass the tensor as stored",
        )
    return bits_of_words(words.shape[-1], where)


def word_pairs(words: Tensor) -> Tensor:
    """Each word of the stream below its predecessor: int16 `[..., 16*K]` to int32 `[..., 16 groups, K]`.

    Bits 15..0 are the stream word itself and bits 31..16 the one before it, circularly: every state is a window of one
    of these.
    """
    shape = words.shape[:-1]
    pairs = words.unflatten(-1, (words.shape[-1] // 2, 2)).to(torch.int32) & _WORD_MASK
    # The stored order is second, first. Word 2i follows word 2i - 1, which is the stored first half of the pair before.
    second, first = pairs[..., 0], pairs[..., 1]
    before = torch.roll(second, 1, -1)
    stream = torch.stack(((before << WORD_BITS) | first, (first << WORD_BITS) | second), dim=-1)
    return stream.view(*shape, GROUPS, words.shape[-1] // GROUPS)


def windows(pairs: Tensor) -> Tensor:
    """States of each phase: int32 `[K, ...]` of word pairs to int32 `[16, ...]` in [0, 65535]."""
    bits = pairs.shape[0]
    end = torch.arange(1, PHASES + 1, device=pairs.device) * bits
    word = (end - 1) // WORD_BITS
    shift = (word + 1) * WORD_BITS - end
    states = pairs.index_select(0, word)
    states >>= shift.to(torch.int32).view(-1, *[1] * (pairs.dim() - 1))
    states &= _WORD_MASK
    return states


def unpack_states(words: Tensor) -> Tensor:
    """Trellis states of tiles: int16 `[n, 16*K]` to int32 `[n, 256]` in stream order.

    Raises:
        FormatError: the words are not tiles of 1 to 8 bits.
    """
    require_words(words, "words")
    phases = windows(word_pairs(words).movedim(-1, 0).contiguous())
    return phases.movedim(0, -1).flatten(-2)


def unpack_symbols(words: Tensor) -> Tensor:
    """Symbols of tiles: int16 `[n, 16*K]` to int32 `[n, 256]` in [0, 2**K) and stream order.

    Raises:
        FormatError: the words are not tiles of 1 to 8 bits.
    """
    bits = require_words(words, "words")
    return unpack_states(words) & ((1 << bits) - 1)


def pack_symbols(symbols: Tensor, bits: int) -> Tensor:
    """Words of tiles: integer symbols `[n, 256]` in [0, 2**bits) to int16 `[n, 16*bits]`.

    Raises:
        FormatError: `bits-range`; `symbols-shape` when the last dimension is not one tile or the dtype no integer;
            `symbols-range` for a symbol that does not fit.
    """
    require_bits(bits, "symbols")
    if symbols.dtype.is_floating_point or symbols.dim() == 0 or symbols.shape[-1] != TILE_SYMBOLS:
        raise FormatError(
            "symbols-shape",
            "symbols are not tiles",
            expected=f"integers [n, {TILE_SYMBOLS}]",
            found=f"{symbols.dtype} {list(symbols.shape)}",
            hint="pass one row of 256 symbols a tile",
        )
    wide = symbols.to(torch.int32)
    if wide.numel() and not 0 <= int(wide.min()) <= int(wide.max()) < 1 << bits:
        raise FormatError(
            "symbols-range",
            f"a symbol does not fit in {bits} bits",
            expected=f"0 to {(1 << bits) - 1}",
            found=f"{int(wide.min())} to {int(wide.max())}",
            hint="pass the bits the symbols were made for",
        )
    device = symbols.device
    digits = (wide.unsqueeze(-1) >> torch.arange(bits - 1, -1, -1, dtype=torch.int32, device=device)) & 1
    stream = digits.reshape(*symbols.shape[:-1], GROUPS * bits // 2, 2, WORD_BITS)
    places = torch.arange(WORD_BITS - 1, -1, -1, dtype=torch.int32, device=device)
    stored = (stream << places).sum(-1).flip(-1).flatten(-2)
    return torch.where(stored >= 0x8000, stored - 0x10000, stored).to(torch.int16)
