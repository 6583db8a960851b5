"""The reference backend against `moe_reference`, in both ways to decode, and the choice of backends."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.decode import Exl3Tensor, moe_reference
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import KernelSettings, kernel_settings
from support.packs import PackRecipe, expert_tensors

RECIPE = PackRecipe(bits={0: (2, 3, 4)}, num_experts=4)


def layer(limit: float = 0.0) -> tuple[PackedLayer, dict[str, list[Exl3Tensor]]]:
    tensors = {name: torch.from_numpy(array) for name, array in expert_tensors(RECIPE, 0).items()}
    packed: dict[str, PackedExperts] = {}
    single: dict[str, list[Exl3Tensor]] = {}
    for projection in ("gate_proj", "up_proj", "down_proj"):
        stacks = [
            torch.stack([tensors[f"model.layers.0.mlp.experts.{e}.{projection}.{s}"] for e in range(4)])
            for s in ("trellis", "suh", "svh")
        ]
        packed[projection] = PackedExperts(stacks[0], stacks[1], stacks[2], "mcg")
        single[projection] = [Exl3Tensor(stacks[0][e], stacks[1][e], stacks[2][e], "mcg") for e in range(4)]
    return PackedLayer("test", packed["gate_proj"], packed["up_proj"], packed["down_proj"], limit), single


def batch(tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, RECIPE.hidden, generator=generator).to(dtype)
    ids = torch.randint(-1, 6, (tokens, 3), generator=generator, dtype=torch.int32)
    return x, ids, torch.rand(tokens, 3, generator=generator)


@pytest.mark.parametrize("limit", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [0, 1, 33])
@pytest.mark.parametrize("decode", ["load", "call"])
def test_reference_equals_moe_reference_in_fp32(decode: str, tokens: int, limit: float) -> None:
    packed, single = layer(limit)
    x, ids, weights = batch(tokens, torch.float32)
    kernel = ReferenceKernel(packed, torch.float32, decode)  # type: ignore[arg-type]
    output = kernel(x, ids, weights)
    expected = moe_reference(x, ids, weights, single["gate_proj"], single["up_proj"], single["down_proj"], limit)
    assert output.dtype == torch.float32
    # fp32 sums in another order.
    assert (output - expected).abs().sum() <= 1e-4 * expected.abs().sum()


def test_reference_in_bf16_stays_within_its_rounding() -> None:
    packed, single = layer()
    x, ids, weights = batch(16, torch.bfloat16)
    output = ReferenceKernel(packed, torch.bfloat16, "load")(x, ids, weights)
    expected = moe_reference(x, ids, weights, single["gate_proj"], single["up_proj"], single["down_proj"])
    assert output.dtype == torch.bfloat16
    assert (output.float() - expected).abs().max() < 0.02 * expected.abs().max()


def test_reference_gives_the_same_bits_twice() -> None:
    packed, _ = layer()
    x, ids, weights = batch(16, torch.bfloat16)
    kernel = ReferenceKernel(packed, torch.bfloat16, "load")
    assert torch.equal(kernel(x, ids, weights), kernel(x, ids, weights))


def test_only_call_keeps_the_packed_weights() -> None:
    packed, _ = layer()
    assert not ReferenceKernel(packed, torch.float32, "load").keeps_packed_weights
    assert ReferenceKernel(packed, torch.float32, "call").keeps_packed_weights


def test_settings_come_from_the_environment() -> None:
    assert kernel_settings({}) == KernelSettings("auto", "load")
    chosen = kernel_settings({"GLM53_EXL3_KERNEL": "reference", "GLM53_EXL3_DECODE": "call"})
    assert chosen == KernelSettings("reference", "call")


@pytest.mark.parametrize("variable", ["GLM53_EXL3_KERNEL", "GLM53_EXL3_DECODE"])
def test_unknown_setting_is_refused(variable: str) -> None:
    with pytest.raises(KernelError, match=f"{variable}=fast") as caught:
        kernel_settings({variable: "fast"})
    assert variable in caught.value.hint
