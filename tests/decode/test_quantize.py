from __future__ import annotations

import pytest
import torch
from torch import Tensor

from glm53_exl3.decode import Exl3Tensor, quantize
from glm53_exl3.decode.gains import GAUSSIAN_ERROR, GAUSSIAN_GAIN, measure_gain
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import CODEBOOKS

RATES = (2, 4)


@pytest.fixture
def weight(generator: torch.Generator) -> Tensor:
    rows, columns = (torch.rand(128, generator=generator).exp() for _ in range(2))
    return 0.02 * rows.unsqueeze(1) * torch.randn(128, 128, generator=generator) * columns


def relative_error(tensor: Exl3Tensor, weight: Tensor) -> float:
    return float((tensor.dequantize() - weight).square().sum() / weight.square().sum())


def same(a: Exl3Tensor, b: Exl3Tensor) -> bool:
    pairs = ((a.trellis, b.trellis), (a.suh, b.suh), (a.svh, b.svh))
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_error_is_that_of_a_gaussian_source_and_falls_with_bits(codebook: str, weight: Tensor) -> None:
    errors = [relative_error(quantize(weight, bits, codebook), weight) for bits in RATES]
    assert errors == sorted(errors, reverse=True)
    for bits, found in zip(RATES, errors, strict=True):
        assert found == pytest.approx(GAUSSIAN_ERROR[codebook][bits - 1], rel=0.12)  # type: ignore[index]


def test_gains_are_the_best_of_their_neighbours() -> None:
    gain = GAUSSIAN_GAIN["mcg"][2]
    best, error = measure_gain("mcg", 3, (gain - 0.2, gain, gain + 0.2), tiles=16)
    assert best == gain
    assert error == pytest.approx(GAUSSIAN_ERROR["mcg"][2], rel=0.15)


def test_every_rate_is_above_the_bound_of_a_gaussian_source() -> None:
    for errors in GAUSSIAN_ERROR.values():
        assert [1 < error * 4**bits < 1.5 for bits, error in enumerate(errors, 1)] == [True] * 8


def test_seed_and_threads(weight: Tensor) -> None:
    first = quantize(weight, 4)
    assert first.codebook == "mcg"
    assert (first.bits, first.shape) == (4, (128, 128))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert same(quantize(weight.clone(), 4, seed=0), first)
    finally:
        torch.set_num_threads(threads)
    other = quantize(weight, 4, seed=1)
    assert not torch.equal(other.suh.sign(), first.suh.sign())
    assert relative_error(other, weight) == pytest.approx(relative_error(first, weight), rel=0.1)


def test_progress_ends_at_the_number_of_tiles(weight: Tensor) -> None:
    counts = list[int]()
    quantize(weight, 8, progress=counts.append)
    assert counts == sorted(counts)
    assert counts[-1] == 64


def test_zero_channels_decode_to_zeros(weight: Tensor) -> None:
    weight[3], weight[:, 70] = 0, 0
    weight[100:110] = 0
    tensor = quantize(weight, 3)
    decoded = tensor.dequantize()
    assert not decoded[3].any()
    assert not decoded[:, 70].any()
    assert not decoded[100:110].any()
    assert relative_error(tensor, weight) == pytest.approx(GAUSSIAN_ERROR["mcg"][2], rel=0.15)


def test_a_zero_weight_decodes_to_zeros() -> None:
    assert not quantize(torch.zeros(128, 128), 8, "mul1").dequantize().any()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e5])
def test_scale_of_the_weight_does_not_matter(scale: float, weight: Tensor) -> None:
    assert relative_error(quantize(weight * scale, 4), weight * scale) < 6e-3


def test_a_single_large_weight_is_kept(weight: Tensor) -> None:
    weight[5, 6] = 100 * weight.abs().max()
    decoded = quantize(weight, 4).dequantize()
    assert float(decoded[5, 6] / weight[5, 6]) == pytest.approx(1, abs=0.1)


def test_other_dtypes_are_quantized_as_fp32(weight: Tensor) -> None:
    assert same(quantize(weight.bfloat16(), 4), quantize(weight.bfloat16().float(), 4))


def with_value(value: float) -> Tensor:
    weight = torch.ones(128, 128)
    weight[2, 3] = value
    return weight


@pytest.mark.parametrize(
    ("weight", "bits", "codebook", "message"),
    [
        (torch.ones(128, 192), 2, "mcg", "128 x 192 cannot be rotated"),
        (torch.ones(64, 128), 2, "mcg", "shape-hadamard"),
        (torch.ones(128), 2, "mcg", "weight-shape"),
        (torch.ones(128, 128, dtype=torch.int8), 2, "mcg", "weight-shape"),
        (torch.ones(128, 128), 0, "mcg", "bits-range"),
        (torch.ones(128, 128), 9, "mcg", "bits-range"),
        (torch.ones(128, 128), 2.0, "mcg", "bits-range"),
        (torch.ones(128, 128), 2, "cb1", "codebook-unknown"),
        (with_value(torch.nan), 2, "mcg", r"NaN[\s\S]*1 values that are not, the first at \[2, 3\]"),
        (with_value(torch.inf), 2, "mcg", "infinity"),
        (torch.full((128, 128), 1e30), 2, "mcg", "weight-range"),
    ],
)
def test_what_cannot_be_quantized_is_refused(weight: Tensor, bits: int, codebook: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        quantize(weight, bits, codebook)
