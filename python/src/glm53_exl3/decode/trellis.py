"""Decoding of packed tiles: words to windows of the bit stream, and windows to values of a codebook."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from glm53_exl3.decode.codebooks import lookup
from glm53_exl3.decode.packing import require_words, unpack_states, windows, word_pairs
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import require_codebook
from glm53_exl3.format.tensors import TILE, TILE_SYMBOLS

#: Weights decoded at a time, with ten bytes of temporaries each. On a CPU few and large steps cost the fewest waits for
#: the other threads while the temporaries still fit in the last-level cache; an accelerator wants more work a launch.
_CHUNK_CPU: Final = 1 << 20
_CHUNK_ACCELERATOR: Final = 1 << 23


def chunk_weights(device: torch.device) -> int:
    """How many weights to decode at a time on a device."""
    return _CHUNK_CPU if device.type == "cpu" else _CHUNK_ACCELERATOR


def decode_tiles(words: Tensor, codebook: str) -> Tensor:
    """Decode tiles in stream order: int16 `[n, 16*bits]` to fp16 `[n, 256]`.

    Raises:
        FormatError: `codebook-unknown`, or the words are not tiles of 1 to 8 bits.
    """
    require_codebook(codebook)
    require_words(words, "words")
    if words.dim() != 2:
        raise _shape_error(words, "[n, 16*bits]")
    result = torch.empty(words.shape[0], TILE_SYMBOLS, dtype=torch.float16, device=words.device)
    step = chunk_weights(words.device) // TILE_SYMBOLS
    for begin in range(0, words.shape[0], step):
        result[begin : begin + step] = lookup(unpack_states(words[begin : begin + step]), codebook)
    return result


def decode_trellis(trellis: Tensor, codebook: str) -> Tensor:
    """Decode a weight before its rotations: int16 `[in/16, out/16, 16*bits]` to fp16 `[in, out]`.

    Equal bit for bit to `reconstruct` of exllamav3, on any device.

    Raises:
        FormatError: `codebook-unknown`, `trellis-dtype`, `trellis-shape`, `trellis-half-rate` or `bits-range`.
    """
    require_codebook(codebook)
    require_words(trellis, "trellis")
    if trellis.dim() != 3:
        raise _shape_error(trellis, "[in/16, out/16, 16*bits]")
    rows, columns, _ = trellis.shape
    result = torch.empty(rows * TILE, columns * TILE, dtype=torch.float16, device=trellis.device)
    target = result.view(rows, 2, 2, 2, 2, columns, 2, 8)
    width, step = _chunk_shape(rows, columns, trellis.device)
    for row in range(0, rows, step):
        for column in range(0, columns, width):
            block = trellis[row : row + step, column : column + width]
            _decode_block(block, codebook, target[row : row + step, ..., column : column + width, :, :])
    return result


def _chunk_shape(rows: int, columns: int, device: torch.device) -> tuple[int, int]:
    tiles = chunk_weights(device) // TILE_SYMBOLS
    width = max(1, min(columns, tiles))
    return width, max(1, min(rows, tiles // width))


def _decode_block(block: Tensor, codebook: str, target: Tensor) -> None:
    rows, columns, _ = block.shape
    # A group of 16 symbols is (c, high bit of q) of its stream position and a phase is (low bit of q, h, b, a), in the
    # letters of tiles.py. Eight weights of consecutive c are neighbours in the weight: with c innermost from the words
    # on, the fp16 values are moved 16 bytes at a time.
    pairs = word_pairs(block).unflatten(2, (8, 2)).permute(4, 0, 3, 1, 2).contiguous()
    values = lookup(windows(pairs), codebook).view(2, 2, 2, 2, rows, 2, columns, 8)
    source = values.view(torch.complex128).permute(4, 2, 5, 0, 3, 6, 1, 7)
    target.view(torch.complex128).copy_(source)


def _shape_error(words: Tensor, expected: str) -> FormatError:
    return FormatError(
        "trellis-shape",
        f"a trellis of {words.dim()} dimensions",
        expected=expected,
        found=str(list(words.shape)),
        hint="pass one linear at a time, as stored in the pack",
    )
