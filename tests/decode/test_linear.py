from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glm53_exl3.decode import Exl3Tensor, decode_trellis, dequantize, linear, linear_reference, quantize
from glm53_exl3.errors import FormatError

Peak = Callable[[Tensor, Tensor], float]
GOLDEN_CASES = [
    *(("3inst", bits) for bits in (1, 2, 3, 4, 6, 8)),
    *(("mcg", bits) for bits in (1, 2, 3, 4, 6, 7)),
    *(("mul1", bits) for bits in (2, 3, 4, 5, 7, 8)),
]


@pytest.fixture
def sample(random_words: Callable[..., Tensor], generator: torch.Generator) -> Exl3Tensor:
    suh, svh = (torch.randn(size, generator=generator).half() for size in (256, 384))
    return Exl3Tensor(random_words(16, 24, 48), suh, svh, "mcg")


@pytest.mark.parametrize(("codebook", "bits"), GOLDEN_CASES)
def test_weight_and_product_agree_with_exllamav3(
    codebook: str, bits: int, golden: Callable[[str], Any], peak_error: Peak
) -> None:
    archive, prefix = golden("exl3_decode"), f"decode/{codebook}/k{bits}"
    trellis, suh, svh = (archive[f"{prefix}/{name}"] for name in ("trellis", "suh", "svh"))
    tensor = Exl3Tensor(trellis, suh, svh, codebook)  # type: ignore[arg-type]
    assert peak_error(dequantize(trellis, suh, svh, codebook), archive[f"{prefix}/full"]) < 2e-3
    assert peak_error(linear_reference(archive[f"{prefix}/x"], tensor), archive[f"{prefix}/y"]) < 2e-3


def test_weight_is_the_formula_in_fp64(sample: Exl3Tensor, peak_error: Peak) -> None:
    signs = [[1 - 2 * ((i & j).bit_count() & 1) for j in range(128)] for i in range(128)]
    block = torch.tensor(signs, dtype=torch.float64) / 128**0.5
    left, right = torch.block_diag(block, block), torch.block_diag(block, block, block)
    inner = decode_trellis(sample.trellis, "mcg").double()
    expected = sample.suh.double().diag() @ left @ inner @ right @ sample.svh.double().diag()
    assert peak_error(sample.dequantize(), expected) < 1e-6
    assert sample.dequantize(torch.bfloat16).dtype == torch.bfloat16


def test_product_equals_that_with_the_dense_weight(
    sample: Exl3Tensor, generator: torch.Generator, peak_error: Peak
) -> None:
    x = torch.randn(2, 5, 256, generator=generator)
    assert peak_error(sample.linear(x), x @ sample.dequantize()) < 1e-5
    assert sample.linear(x.bfloat16()).dtype == torch.float32
    assert sample.linear(x[:, :0]).shape == (2, 0, 384)


def test_blocks_of_rows_do_not_change_the_weight(sample: Exl3Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sample.dequantize()
    monkeypatch.setattr(linear, "chunk_weights", lambda _: 1)
    assert torch.allclose(sample.dequantize(), whole, atol=1e-5)


def test_properties(sample: Exl3Tensor) -> None:
    assert (sample.bits, sample.in_features, sample.out_features, sample.shape) == (3, 256, 384, (256, 384))


def test_a_safetensors_file_keeps_every_bit(tmp_path: Path, generator: torch.Generator) -> None:
    saved = quantize(torch.randn(128, 128, generator=generator), 2)
    path = tmp_path / "model.safetensors"
    save_file({"a.trellis": saved.trellis, "a.suh": saved.suh, "a.svh": saved.svh}, path)
    stored = load_file(path)
    loaded = Exl3Tensor(stored["a.trellis"], stored["a.suh"], stored["a.svh"], "mcg")
    assert torch.equal(loaded.trellis, saved.trellis)
    assert torch.equal(loaded.dequantize(), saved.dequantize())


def words(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int16)


def scales(size: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.ones(size, dtype=dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((words(8, 8, 24), scales(128), scales(128), "mcg"), "half-rate trellis of 1.5 bits"),
        ((words(8, 8, 32).int(), scales(128), scales(128), "mcg"), "trellis-dtype"),
        ((words(8, 12, 32), scales(128), scales(192), "mcg"), "128 x 192 cannot be rotated"),
        ((words(8, 32), scales(128), scales(128), "mcg"), "trellis-shape"),
        ((words(8, 8, 32), scales(64), scales(128), "mcg"), "scale-shape: suh"),
        ((words(8, 8, 32), scales(128), scales(256), "mcg"), "scale-shape: svh"),
        ((words(8, 8, 32), scales(128, torch.float32), scales(128), "mcg"), "scale-dtype: suh"),
        ((words(8, 8, 32), scales(128), scales(128), "mgc"), "codebook-unknown"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Exl3Tensor(*arguments)
    with pytest.raises(FormatError, match=message):
        dequantize(*arguments)


def test_input_of_another_size_is_refused(sample: Exl3Tensor) -> None:
    with pytest.raises(FormatError, match=re.escape("[..., 256]")):
        sample.linear(torch.zeros(3, 128))
