from __future__ import annotations

import pytest
import torch

from glm53_exl3.decode import matrix_to_tiles, tile_permutation, tiles_to_matrix
from glm53_exl3.errors import FormatError


def position(t: int) -> tuple[int, int]:
    """Row and column of a stream position, from the description by tensor-core lanes."""
    lane, j = divmod(t, 8)
    first = lane % 4 * 2
    return (first, first + 1, first + 8, first + 9)[j % 4], lane // 4 + (8 if j >= 4 else 0)


def test_permutation_follows_the_tensor_core_lanes() -> None:
    order = tile_permutation()
    assert order.to_stream.tolist() == [16 * row + column for row, column in map(position, range(256))]
    assert torch.equal(order.to_stream[order.to_matrix], torch.arange(256))


def test_tiles_of_a_matrix_are_in_rows_of_tiles() -> None:
    matrix = torch.arange(32 * 48).view(32, 48)
    tiles = matrix_to_tiles(matrix)
    assert tiles.shape == (6, 256)
    assert tiles[4].tolist() == matrix[16:, 16:32].flatten()[tile_permutation().to_stream].tolist()
    assert torch.equal(tiles_to_matrix(tiles, 32, 48), matrix)


def test_what_has_no_whole_tiles_is_refused() -> None:
    with pytest.raises(FormatError, match="tile-shape"):
        matrix_to_tiles(torch.zeros(16, 24))
    with pytest.raises(FormatError, match="3 dimensions"):
        matrix_to_tiles(torch.zeros(1, 16, 16))
    with pytest.raises(FormatError, match="do not fill"):
        tiles_to_matrix(torch.zeros(3, 256), 32, 32)
