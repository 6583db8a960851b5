"""Order of the 256 weights of a 16 x 16 tile in its bit stream.

The order is that of a tensor-core operand: stream position t = 32 c + 8 q + 4 h + 2 b + a, with c of 3 bits, q of 2,
and h, b, a of 1, is row 8 b + 2 q + a (along the input) and column 8 h + c (along the output) of the tile
(turboderp-org/exllamav3 1.4.5, `modules/quant/exl3_lib/quantize.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from glm53_exl3.errors import FormatError
from glm53_exl3.format.tensors import TILE, TILE_SYMBOLS


class TilePermutation(NamedTuple):
    """Two inverse permutations, int64 `[256]` each.

    Attributes:
        to_stream: `tile.flatten()[to_stream]` is a row-major tile in stream order.
        to_matrix: `stream[to_matrix]` is a stream in row-major order.
    """

    to_stream: Tensor
    to_matrix: Tensor


def tile_permutation(device: torch.device | str = "cpu") -> TilePermutation:
    """The permutation of the positions of one tile, see :class:`TilePermutation`."""
    to_matrix = tiles_to_matrix(torch.arange(TILE_SYMBOLS, device=device).view(1, -1), TILE, TILE).flatten()
    return TilePermutation(torch.argsort(to_matrix), to_matrix)


def tiles_to_matrix(tiles: Tensor, in_features: int, out_features: int) -> Tensor:
    """Tiles `[(in/16) * (out/16), 256]` in stream order, row of tiles by row, to a matrix `[in, out]` of their dtype.

    Raises:
        FormatError: `tile-shape` when the tiles do not fill the matrix.
    """
    rows, columns = _tile_counts(in_features, out_features)
    if tiles.dim() != 2 or tiles.shape[0] != rows * columns or tiles.shape[1] != TILE_SYMBOLS:
        raise FormatError(
            "tile-shape",
            f"tiles do not fill a matrix of {in_features} x {out_features}",
            expected=str([rows * columns, TILE_SYMBOLS]),
            found=str(list(tiles.shape)),
            hint="pass the tiles of one whole weight",
        )
    stream = tiles.reshape(rows, columns, 8, 4, 2, 2, 2)
    return stream.permute(0, 5, 3, 6, 1, 4, 2).reshape(in_features, out_features)


def matrix_to_tiles(matrix: Tensor) -> Tensor:
    """A matrix `[in, out]` to tiles `[(in/16) * (out/16), 256]` in stream order: inverse of :func:`tiles_to_matrix`.

    Raises:
        FormatError: `tile-shape` when it is no matrix of whole tiles.
    """
    if matrix.dim() != 2:
        raise FormatError(
            "tile-shape",
            f"a tensor of {matrix.dim()} dimensions cannot be cut into tiles",
            expected="[in, out]",
            found=str(list(matrix.shape)),
            hint="pass one weight at a time",
        )
    rows, columns = _tile_counts(*matrix.shape)
    split = matrix.reshape(rows, 2, 4, 2, columns, 2, 8)
    return split.permute(0, 4, 6, 2, 5, 1, 3).reshape(rows * columns, TILE_SYMBOLS)


def _tile_counts(in_features: int, out_features: int) -> tuple[int, int]:
    if in_features % TILE or out_features % TILE:
        raise FormatError(
            "tile-shape",
            f"a matrix of {in_features} x {out_features} has no whole number of tiles",
            expected=f"both dimensions multiples of {TILE}",
            hint="pad the weight before quantizing",
        )
    return in_features // TILE, out_features // TILE
