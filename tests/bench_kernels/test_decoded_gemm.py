"""Decoding and dense products: against stand-ins for exllamav3's kernels that compute the same in torch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from bench_kernels.test_measure import CPU, settings
from glm53_exl3.bench_kernels import decoded_gemm
from glm53_exl3.bench_kernels.backends import decoded_backend
from glm53_exl3.bench_kernels.decoded_gemm import DecodedGemm, buffer_bytes
from glm53_exl3.bench_kernels.layers import random_batch, random_layer
from glm53_exl3.bench_kernels.measure import measure
from glm53_exl3.bench_kernels.oracle import expected_outputs
from glm53_exl3.bench_kernels.report import table_lines
from glm53_exl3.bench_kernels.result import require_right
from glm53_exl3.decode import hadamard_128
from glm53_exl3.decode.trellis import decode_trellis
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.accuracy import relative_error


class StandIn:
    """`reconstruct` and `had_r_128` as exllamav3 has them, and how often they were called."""

    def __init__(self) -> None:
        self.decoded: list[int] = []
        self.transformed: list[int] = []

    def reconstruct(self, matrix: torch.Tensor, trellis: torch.Tensor, bits: int, mcg: bool, mul1: bool) -> None:
        assert trellis.shape[-1] == 16 * bits
        codebook = "mcg" if mcg else "mul1" if mul1 else "3inst"
        matrix.copy_(decode_trellis(trellis, codebook))
        self.decoded.append(bits)

    def had_r_128(self, given: torch.Tensor, found: torch.Tensor, before: Any, after: Any, scale: float) -> None:
        assert (given.dtype, found.dtype, scale) == (torch.float16, torch.float16, 1.0)
        assert given.is_contiguous()
        assert found.is_contiguous()
        scaled = given.float() if before is None else given.float() * before.float()
        result = hadamard_128(scaled)
        found.copy_(result if after is None else result * after.float())
        self.transformed.append(len(given))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setattr(decoded_gemm, "load_extension", lambda: found)
    monkeypatch.setattr(decoded_gemm, "require_arch", lambda extension, capability: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    return found


@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
@pytest.mark.parametrize(("tokens", "limit"), [(1, 0.0), (9, 10.0), (9, 0.3)])
def test_a_product_an_expert_gives_the_outputs_of_the_layer(
    stand_in: StandIn, tokens: int, limit: float, codebook: str
) -> None:
    asked = settings(bits="3,2,4", codebook=codebook, limit=limit)
    layer, batch = random_layer(asked, 0, CPU), random_batch(asked, tokens, 0, CPU)
    (expected,) = expected_outputs(layer, [batch])
    call = DecodedGemm(layer, [], grouped=False).prepare(batch)
    for _ in range(2):
        output = call.run()
        assert output.dtype == torch.bfloat16
        assert relative_error(output, expected) < 5e-3


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_grouped_products_decode_each_expert_once_and_transform_all_rows_at_once(stand_in: StandIn) -> None:
    asked = settings(bits="3,2,4")
    layer, batch = random_layer(asked, 0, CPU), random_batch(asked, 4, 0, CPU)
    touched = len(batch.ids.unique())
    buffer: list[torch.Tensor] = []
    call = DecodedGemm(layer, buffer, grouped=True).prepare(batch)
    output = call.run()
    assert (output.shape, output.dtype) == ((4, 256), torch.bfloat16)
    assert stand_in.decoded == [3] * touched + [2] * touched + [4] * touched
    assert stand_in.transformed == [8] * 6
    assert buffer[0].numel() * 2 == buffer_bytes(layer)
    DecodedGemm(layer, buffer, grouped=True)
    assert len(buffer) == 1


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_grouped_products_are_those_of_the_rows_of_each_expert(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With bits that mean the same in both types and one pair of vectors for all, the outputs are those of the layer.
    asked = settings(limit=0.0)
    layer, batch = random_layer(asked, 0, CPU), random_batch(asked, 7, 0, CPU)
    for one in (layer.gate, layer.up, layer.down):
        one.suh.copy_(one.suh[:1].clone())
        one.svh.copy_(one.svh[:1].clone())
    grouped = torch._grouped_mm

    def in_fp16(rows: torch.Tensor, dense: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        rows, dense = (one.view(torch.float16).bfloat16() for one in (rows, dense))
        return grouped(rows, dense, offs=offs).half().view(torch.bfloat16)

    monkeypatch.setattr(torch, "_grouped_mm", in_fp16)
    (expected,) = expected_outputs(layer, [batch])
    # Rounded to bf16 four times.
    assert relative_error(DecodedGemm(layer, [], grouped=True).prepare(batch).run(), expected) < 2e-2


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("grouped", [True, False])
def test_only_outputs_that_mean_something_are_compared(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, grouped: bool
) -> None:
    if grouped:
        monkeypatch.setattr("glm53_exl3.bench_kernels.backends.method_for", lambda device: "torch._grouped_mm")
    found = measure(settings(), CPU, [decoded_backend()], lambda line: None)
    require_right(found)
    cell = found.rows[0].cells["decoded"]
    assert cell.to_json()["error"] == (None if grouped else cell.error)
    assert cell.to_json()["tolerance"] == (None if grouped else 5e-3)
    assert ("outputs mean nothing" in found.details["decoded"]) == grouped
    row = next(line for line in table_lines(found) if line.split()[0] == "1")
    assert row.split()[-1] == ("-" if grouped else f"{cell.error:.1e}")
    assert cell.microseconds.p50 > 0


def test_experts_that_do_not_fit_are_decoded_one_after_another(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glm53_exl3.bench_kernels.backends.method_for", lambda device: "torch._grouped_mm")
    monkeypatch.setattr("glm53_exl3.bench_kernels.backends.free_bytes", lambda device: 1000)
    found = measure(settings(), CPU, [decoded_backend()], lambda line: None)
    assert "a cuBLAS product an expert" in found.details["decoded"]
    require_right(found)


def test_a_missing_extension_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("no such extension")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(KernelError) as caught:
        DecodedGemm(random_layer(settings(), 0, CPU), [], grouped=False)
    assert caught.value.id == "extension-missing"
