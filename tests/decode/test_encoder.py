from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import glm53_exl3.decode
from glm53_exl3.decode import decode_tiles, encode_tiles, encoder
from glm53_exl3.errors import FormatError, Glm53Error
from glm53_exl3.format.codebooks import CODEBOOKS

CASES = [(codebook, bits) for codebook in CODEBOOKS for bits in range(1, 9)]
# The error of a case without stored samples is known for others of the same kind only; the tails of a Gaussian, which
# the codebook clips, make it vary most, so fresh samples are drawn without them.
TAIL = 3.3


def error(words: Tensor, samples: Tensor, codebook: str) -> float:
    return float((decode_tiles(words, codebook).float() - samples).square().mean())


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_error_is_that_of_the_encoder_of_exllamav3(
    codebook: str,
    bits: int,
    golden: Callable[[str], Any],
    golden_errors: dict[str, float],
    generator: torch.Generator,
) -> None:
    archive, name = golden("exl3_quantize"), f"{codebook}/k{bits}"
    if f"{name}/in" in archive:
        samples = archive[f"{name}/in"]
        assert error(encode_tiles(samples, bits, codebook), samples, codebook) <= 1.03 * golden_errors[name]
    else:
        samples = torch.randn(12, 256, generator=generator).clamp(-TAIL, TAIL)
        assert error(encode_tiles(samples, bits, codebook), samples, codebook) <= 1.03 * golden_errors[name]


@pytest.mark.parametrize(("codebook", "bits"), CASES)
def test_what_can_be_coded_is_coded_without_error(
    codebook: str, bits: int, random_words: Callable[..., Tensor]
) -> None:
    values = decode_tiles(random_words(2, 16 * bits), codebook)
    assert torch.equal(decode_tiles(encode_tiles(values, bits, codebook), codebook), values)


def test_progress_counts_tiles(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    monkeypatch.setattr(encoder, "_BATCH", 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    samples, counts = torch.randn(9, 256, generator=generator), list[int]()
    words = encode_tiles(samples, 8, "mcg", progress=counts.append)
    assert counts == [4, 8, 9]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert torch.equal(encode_tiles(samples, 8, "mcg"), words)


def test_outliers_do_not_spoil_their_tile(generator: torch.Generator) -> None:
    samples = torch.randn(2, 256, generator=generator)
    samples[0, 7], samples[1, 200] = 1e30, -3e38
    decoded = decode_tiles(encode_tiles(samples, 6, "mul1"), "mul1").float()
    usual = samples.abs() < 3
    assert float((decoded - samples)[usual].square().mean()) < 2e-3
    assert decoded[0, 7] > 3
    assert decoded[1, 200] < -3


def test_no_tiles() -> None:
    assert encode_tiles(torch.zeros(0, 256), 3, "mcg").shape == (0, 48)


@pytest.mark.parametrize(
    ("samples", "bits", "codebook", "message"),
    [
        (torch.zeros(1, 256), 0, "mcg", "bits-range"),
        (torch.zeros(1, 256), 9, "mcg", "bits-range"),
        (torch.zeros(1, 256), 2, "mgc", "codebook-unknown"),
        (torch.zeros(1, 255), 2, "mcg", "tile-shape"),
        (torch.zeros(256), 2, "mcg", "tile-shape"),
        (torch.zeros(1, 256, dtype=torch.int32), 2, "mcg", "tile-shape"),
        (torch.full((1, 256), torch.nan), 2, "mcg", r"NaN.*\n.*\n.*256 values.*\[0, 0\]"),
        (torch.full((1, 256), -torch.inf), 2, "mcg", "infinity"),
    ],
)
def test_what_cannot_be_encoded_is_refused(samples: Tensor, bits: int, codebook: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        encode_tiles(samples, bits, codebook)


def test_missing_numba_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "glm53_exl3.decode.viterbi", raising=False)
    monkeypatch.delattr(glm53_exl3.decode, "viterbi", raising=False)
    with pytest.raises(Glm53Error, match="numba-missing"):
        encode_tiles(torch.zeros(1, 256), 2, "mcg")
