from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glm53_exl3.decode import hadamard_128
from glm53_exl3.errors import FormatError


def by_parity(x: Tensor) -> Tensor:
    """Blocks of 128 from the definition: the sign of entry (i, j) is the parity of the common bits of i and j."""
    signs = [[1 - 2 * ((i & j).bit_count() & 1) for j in range(128)] for i in range(128)]
    matrix = torch.tensor(signs, dtype=torch.float64) / 128**0.5
    rotated: Tensor = x.double().view(-1, 128) @ matrix
    return rotated.view(x.shape)


def test_blocks_are_rotated_in_natural_order(
    generator: torch.Generator, peak_error: Callable[[Tensor, Tensor], float]
) -> None:
    x = torch.randn(3, 384, generator=generator)
    assert peak_error(hadamard_128(x), by_parity(x)) < 1e-6


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_is_its_own_inverse_along_every_dimension(
    dim: int, generator: torch.Generator, peak_error: Callable[[Tensor, Tensor], float]
) -> None:
    shape = [3, 2, 5]
    shape[dim] = 256
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    assert peak_error(hadamard_128(x, dim).movedim(dim, -1), by_parity(x.movedim(dim, -1).contiguous())) < 1e-12
    assert peak_error(hadamard_128(hadamard_128(x, dim), dim), x) < 1e-12


def test_keeps_dtype_and_accepts_strides_and_no_rows(generator: torch.Generator) -> None:
    x = torch.randn(128, 4, generator=generator)
    assert torch.allclose(hadamard_128(x.T), hadamard_128(x, 0).T, atol=1e-6)
    assert hadamard_128(x.half(), 0).dtype == torch.float16
    assert hadamard_128(torch.zeros(0, 256)).shape == (0, 256)
    assert hadamard_128(torch.zeros(256, 0), 0).shape == (256, 0)


def test_partial_blocks_are_refused() -> None:
    with pytest.raises(FormatError, match="a dimension of 192 cannot be rotated"):
        hadamard_128(torch.zeros(2, 192))
