"""Layers whose experts differ in bits: one tensor an expert instead of a stack."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.decode import Exl3Tensor, moe_reference
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels import automatic
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import FixedWeights, PackedExperts, PackedLayer
from glm53_exl3.kernels.native.kernel import NativeKernel
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import Decode
from glm53_exl3.kernels.tables import AddressTables
from kernels.test_native import installed
from kernels.test_reference import batch
from support.packs import PackRecipe, expert_tensors

RECIPE = PackRecipe(bits={0: [(2, 3, 4), (5, 3, 4), (2, 1, 4), (2, 3, 8)]}, num_experts=4)


def layer() -> tuple[PackedLayer, dict[str, list[Exl3Tensor]]]:
    tensors = {name: torch.from_numpy(array) for name, array in expert_tensors(RECIPE, 0).items()}
    packed: list[PackedExperts] = []
    single: dict[str, list[Exl3Tensor]] = {}
    for projection in ("gate_proj", "up_proj", "down_proj"):
        trellis, suh, svh = (
            [tensors[f"model.layers.0.mlp.experts.{e}.{projection}.{s}"] for e in range(4)]
            for s in ("trellis", "suh", "svh")
        )
        packed.append(PackedExperts(tuple(trellis), torch.stack(suh), torch.stack(svh), "mcg"))
        single[projection] = [Exl3Tensor(*one, "mcg") for one in zip(trellis, suh, svh, strict=True)]
    return PackedLayer("test", *packed), single


def test_rates_are_those_of_each_expert() -> None:
    packed, _ = layer()
    assert packed.gate.rates == (2, 5, 2, 2)
    assert (packed.gate.bits, packed.up.bits, packed.down.bits) == (0, 0, 0)
    assert (packed.gate.rate_text, packed.up.rate_text, packed.down.rate_text) == ("2+5", "1+3", "4+8")
    assert packed.gate.num_experts == 4
    alike = PackedExperts(packed.gate.trellis[2:], packed.gate.suh[2:], packed.gate.svh[2:], "mcg")
    assert (alike.bits, alike.rates, alike.rate_text) == (2, (2, 2), "2")


@pytest.mark.parametrize("decode", ["load", "call"])
def test_the_reference_runs_them(decode: Decode) -> None:
    packed, single = layer()
    x, ids, weights = batch(33, torch.float32)
    gate, up, down = (single[name] for name in ("gate_proj", "up_proj", "down_proj"))
    found = ReferenceKernel(packed, torch.float32, decode)(x, ids, weights)
    torch.testing.assert_close(found, moe_reference(x, ids, weights, gate, up, down, 0.0), rtol=1e-4, atol=1e-4)


def test_tables_point_to_each_expert() -> None:
    packed, _ = layer()
    tables = AddressTables(FixedWeights(packed)).tables
    for number, part in enumerate((packed.gate, packed.up, packed.down)):
        assert tables[3 * number].tolist() == [one.data_ptr() for one in part.trellis]
        assert tables[3 * number + 1].tolist() == [row.data_ptr() for row in part.suh]


def test_the_native_kernels_get_the_rate_of_each_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _ = layer()
    called = installed(monkeypatch, packed)
    kernel = NativeKernel(FixedWeights(packed), 64, 3)
    x, ids, weights = batch(5, torch.bfloat16)
    kernel(x, ids, weights)
    assert called.calls[-1]["rate"] == 0
    assert [rates.tolist() for rates in called.calls[-1]["bits"]] == [[2, 5, 2, 2], [3, 3, 1, 3], [4, 4, 4, 8]]


def test_exllamav3_refuses_them() -> None:
    with pytest.raises(KernelError) as caught:
        ExllamaKernel(FixedWeights(layer()[0]), 64, 3)
    assert (caught.value.id, caught.value.what) == ("exllamav3-bits", "test: experts have 2+5 bits for gate")
    assert "GLM53_EXL3_KERNEL=native" in caught.value.hint


def test_layers_of_other_mixtures_are_other_kinds() -> None:
    packed, _ = layer()
    alike = PackedExperts(packed.gate.trellis[2:], packed.gate.suh[2:], packed.gate.svh[2:], "mcg")
    even = PackedLayer("even", alike, alike, alike)
    kinds = {automatic.kind_of(one, 3, 64).bits for one in (packed, even)}
    assert kinds == {("2+5", "1+3", "4+8"), ("2", "2", "2")}
