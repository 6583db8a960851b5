from __future__ import annotations

import numpy as np
import pytest
import torch

from glm53_exl3.decode.codebooks import codebook_table, lookup
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import CODEBOOKS


def scalar_value(codebook: str, state: int) -> np.float16:
    """One entry in Python integers and NumPy's fp16, after the definition and independent of the tables."""
    if codebook == "mul1":
        word = state * 0x83DCD12D % 2**32
        scale, shift = np.array([0x1EEE, 0xC931], np.uint16).view(np.float16).astype(np.float64)
        return np.float16((1024 + sum(word.to_bytes(4, "little"))) * scale + shift)
    word = (state * 89226354 + 64248484 if codebook == "3inst" else state * 0xCBAC1FED) % 2**32
    halves = np.array([(word & 0x8FFF8FFF) ^ 0x3B603B60], np.uint32).view(np.float16)
    return np.float16(halves[0] + halves[1])


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_table_equals_the_definition_bit_for_bit(codebook: str) -> None:
    expected = np.array([scalar_value(codebook, state) for state in range(65536)], np.float16)
    assert np.array_equal(codebook_table(codebook).numpy().view(np.uint16), expected.view(np.uint16))


@pytest.mark.parametrize(
    ("codebook", "first", "deviation", "extent"),
    [
        ("3inst", (0.768, -0.9194, 0.9316, 0.2944), 1.24371, 3.97),
        ("mcg", (1.844, 0.1345, -0.7593, 0.84), 1.24411, 3.949),
        ("mul1", (-3.453, 0.641, -0.4485, 0.1945), 1.0003, 3.453),
    ],
)
def test_published_properties(codebook: str, first: tuple[float, ...], deviation: float, extent: float) -> None:
    table = codebook_table(codebook).double()
    assert table[:4].tolist() == pytest.approx(first, abs=5e-4)
    assert float(table.std()) == pytest.approx(deviation, abs=1e-4)
    assert float(table.abs().max()) == pytest.approx(extent, abs=3e-3)


def test_table_is_cached_and_usable_under_autograd() -> None:
    with torch.inference_mode():
        table = codebook_table("mcg")
    assert codebook_table("mcg") is table
    assert not table.is_inference()


def test_lookup_keeps_the_shape() -> None:
    states = torch.tensor([[0, 1], [2, 65535]], dtype=torch.int32)
    assert torch.equal(lookup(states, "mcg"), codebook_table("mcg")[states.long()])


def test_unknown_codebook_is_refused() -> None:
    with pytest.raises(FormatError, match="codebook-unknown"):
        codebook_table("mcg2")
