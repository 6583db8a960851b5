from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glm53_exl3.decode import codebook_table, decode_tiles, decode_trellis, tile_permutation, tiles_to_matrix, trellis
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import CODEBOOKS

CASES = [(codebook, bits) for codebook in CODEBOOKS for bits in range(1, 9)]
GOLDEN_CASES = [
    *(("3inst", bits) for bits in (1, 2, 3, 4, 6, 8)),
    *(("mcg", bits) for bits in (1, 2, 3, 4, 6, 7)),
    *(("mul1", bits) for bits in (2, 3, 4, 5, 7, 8)),
]


def bits_equal(found: Tensor, expected: Tensor) -> bool:
    return torch.equal(found.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize(("codebook", "bits"), GOLDEN_CASES)
def test_decode_equals_exllamav3_bit_for_bit(codebook: str, bits: int, golden: Callable[[str], Any]) -> None:
    archive, prefix = golden("exl3_decode"), f"decode/{codebook}/k{bits}"
    found = decode_trellis(archive[f"{prefix}/trellis"], codebook)
    assert bits_equal(found, archive[f"{prefix}/inner"])


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_decode_equals_a_slow_decoder(
    codebook: str, bits: int, random_words: Callable[..., Tensor], states_of: Callable[[list[int]], list[int]]
) -> None:
    words = random_words(2, 3, 16 * bits)
    table, order = codebook_table(codebook), tile_permutation().to_stream.tolist()
    expected = torch.empty(32, 48, dtype=torch.float16)
    for row in range(2):
        for column in range(3):
            for place, state in zip(order, states_of(words[row, column].tolist()), strict=True):
                expected[16 * row + place // 16, 16 * column + place % 16] = table[state]
    assert bits_equal(decode_trellis(words, codebook), expected)


@pytest.mark.parametrize("bits", range(1, 9))
def test_chunks_do_not_change_the_result(
    bits: int, random_words: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = random_words(5, 7, 16 * bits)
    whole = decode_trellis(words, "mcg")
    for tiles in (1, 3, 7, 15):
        monkeypatch.setattr(trellis, "_CHUNK_CPU", 256 * tiles)
        assert bits_equal(decode_trellis(words, "mcg"), whole)
        assert bits_equal(tiles_to_matrix(decode_tiles(words.view(35, -1), "mcg"), 80, 112), whole)


def test_strided_words_are_read_as_they_are(random_words: Callable[..., Tensor]) -> None:
    words = random_words(4, 8, 64)[::2, 1::3, :32]
    assert bits_equal(decode_trellis(words, "mul1"), decode_trellis(words.contiguous(), "mul1"))


def test_temporaries_do_not_grow_with_the_weight() -> None:
    rows, columns = trellis._chunk_shape(256, 768, torch.device("cpu"))
    assert rows * columns * 256 <= trellis._CHUNK_CPU
    assert trellis._chunk_shape(8, 10_000_000, torch.device("cpu")) == (trellis._CHUNK_CPU // 256, 1)


def test_nothing_decodes_to_nothing() -> None:
    assert decode_tiles(torch.zeros(0, 32, dtype=torch.int16), "mcg").shape == (0, 256)
    assert decode_trellis(torch.zeros(0, 4, 32, dtype=torch.int16), "mcg").shape == (0, 64)


@pytest.mark.parametrize(
    ("words", "codebook", "message"),
    [
        (torch.zeros(8, 8, 40, dtype=torch.int16), "mul1", "trellis-half-rate.*2.5 bits"),
        (torch.zeros(8, 8, 32, dtype=torch.float16), "mcg", "trellis-dtype"),
        (torch.zeros(8, 32, dtype=torch.int16), "mcg", "trellis-shape"),
        (torch.zeros(8, 8, 144, dtype=torch.int16), "mcg", "bits-range"),
        (torch.zeros(8, 8, 32, dtype=torch.int16), "mgc", "codebook-unknown"),
        (torch.zeros(0, 8, 32, dtype=torch.int16), "mgc", "codebook-unknown"),
    ],
)
def test_what_is_no_trellis_is_refused(words: Tensor, codebook: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_trellis(words, codebook)


def test_tiles_have_two_dimensions() -> None:
    with pytest.raises(FormatError, match="trellis-shape"):
        decode_tiles(torch.zeros(2, 2, 32, dtype=torch.int16), "mcg")
    with pytest.raises(FormatError, match="codebook-unknown"):
        decode_tiles(torch.zeros(0, 32, dtype=torch.int16), "no")
