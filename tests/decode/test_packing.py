from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glm53_exl3.decode import pack_symbols, unpack_states, unpack_symbols
from glm53_exl3.errors import FormatError


@pytest.mark.parametrize("bits", range(1, 9))
def test_states_are_windows_of_the_circular_stream(
    bits: int, random_words: Callable[..., Tensor], states_of: Callable[[list[int]], list[int]]
) -> None:
    words = random_words(3, 16 * bits)
    expected = [states_of(row) for row in words.tolist()]
    assert unpack_states(words).tolist() == expected
    assert unpack_symbols(words).tolist() == [[state % 2**bits for state in row] for row in expected]


@pytest.mark.parametrize("bits", range(1, 9))
def test_pack_and_unpack_are_inverse(
    bits: int, random_words: Callable[..., Tensor], generator: torch.Generator
) -> None:
    words = random_words(9, 16 * bits)
    assert torch.equal(pack_symbols(unpack_symbols(words), bits), words)
    symbols = torch.randint(0, 2**bits, (9, 256), generator=generator)
    packed = pack_symbols(symbols, bits)
    assert packed.shape == (9, 16 * bits)
    assert packed.dtype == torch.int16
    assert torch.equal(unpack_symbols(packed).long(), symbols)


def test_first_symbol_is_the_top_of_the_second_word() -> None:
    symbols = torch.zeros(1, 256, dtype=torch.uint8)
    symbols[0, 0] = 0b10
    assert pack_symbols(symbols, 2)[0, :3].tolist() == [0, -32768, 0]


def test_leading_dimensions_are_kept(random_words: Callable[..., Tensor]) -> None:
    words = random_words(2, 3, 48)
    assert torch.equal(unpack_states(words)[1, 2], unpack_states(words[1, 2].unsqueeze(0))[0])
    assert unpack_symbols(words[:0]).shape == (0, 3, 256)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (torch.zeros(4, 24, dtype=torch.int16), "half-rate trellis of 1.5 bits"),
        (torch.zeros(4, 32, dtype=torch.int32), "trellis-dtype"),
        (torch.zeros(4, 17, dtype=torch.int16), "bits-range"),
        (torch.zeros(4, 0, dtype=torch.int16), "bits-range"),
        (torch.zeros(4, 144, dtype=torch.int16), "bits-range"),
        (torch.zeros((), dtype=torch.int16), "trellis-shape"),
    ],
)
def test_words_that_are_no_tiles_are_refused(words: Tensor, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        unpack_states(words)


@pytest.mark.parametrize(
    ("symbols", "bits", "message"),
    [
        (torch.zeros(1, 256, dtype=torch.int64), 0, "bits-range"),
        (torch.zeros(1, 256, dtype=torch.int64), 9, "bits-range"),
        (torch.zeros(1, 255, dtype=torch.int64), 2, "symbols-shape"),
        (torch.zeros(1, 256), 2, "symbols-shape"),
        (torch.full((1, 256), 4), 2, "symbols-range"),
        (torch.full((1, 256), -1), 2, "symbols-range"),
    ],
)
def test_symbols_that_cannot_be_packed_are_refused(symbols: Tensor, bits: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        pack_symbols(symbols, bits)
