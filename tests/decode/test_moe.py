from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from glm53_exl3.decode import Exl3Tensor, gated_silu, moe_dense_reference, moe_reference
from glm53_exl3.errors import FormatError

Peak = Callable[[Tensor, Tensor], float]
PARTS = ("trellis", "suh", "svh")
Experts = tuple[list[Exl3Tensor], list[Exl3Tensor], list[Exl3Tensor]]


@pytest.fixture
def experts(random_words: Callable[..., Tensor], generator: torch.Generator) -> Experts:
    def make(in_features: int, out_features: int, bits: int) -> list[Exl3Tensor]:
        return [
            Exl3Tensor(
                random_words(in_features // 16, out_features // 16, 16 * bits),
                (torch.randn(in_features, generator=generator) / 16).half(),
                torch.randn(out_features, generator=generator).half(),
                "mcg",
            )
            for _ in range(4)
        ]

    return make(256, 128, 2), make(256, 128, 3), make(128, 256, 2)


@pytest.fixture
def routing(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    ids = torch.tensor([[0, 3], [2, 1], [3, 0], [1, 1], [-1, 2]])
    return torch.randn(5, 256, generator=generator), ids, torch.rand(5, 2, generator=generator)


def dense(tensors: list[Exl3Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([tensor.dequantize(dtype) for tensor in tensors])


def token_by_token(x: Tensor, ids: Tensor, weights: Tensor, experts: Experts, limit: float) -> Tensor:
    """The definition in fp64, one token and one expert at a time."""
    gate, up, down = (dense(tensors).double() for tensors in experts)
    result = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for slot, expert in enumerate(ids[token].tolist()):
            if not 0 <= expert < len(gate):
                continue
            row = x[token].double()
            g, u = row @ gate[expert], row @ up[expert]
            g = g / (1 + torch.exp(-g))
            if limit > 0:
                g, u = torch.minimum(g, torch.tensor(limit)), u.clamp(-limit, limit)
            result[token] += weights[token, slot].double() * ((g * u) @ down[expert])
    return result


def golden_cases(archive: Any) -> list[int]:
    return sorted({int(name.split("/")[1]) for name in archive.arrays})


def test_agrees_with_exllamav3(golden: Callable[[str], Any], peak_error: Peak) -> None:
    archive = golden("exl3_moe")
    seen = []
    for case in golden_cases(archive):
        prefix = f"moe/{case}"
        meta = json.loads(str(archive.arrays[f"{prefix}/meta"]))
        gate, up, down = (
            [
                Exl3Tensor(*parts, meta["codebook"])
                for parts in zip(*(archive[f"{prefix}/{name}_{part}"] for part in PARTS), strict=True)
            ]
            for name in ("gate", "up", "down")
        )
        x, ids, weights = (archive[f"{prefix}/{name}"] for name in ("x", "ids", "w"))
        found = moe_reference(x, ids, weights, gate, up, down, meta["limit"])
        assert peak_error(found, archive[f"{prefix}/out"]) < 3e-3, prefix
        seen.append((meta["limit"] > 0, torch.equal(gate[0].suh, up[0].suh), meta["codebook"]))
    assert {limit for limit, _, _ in seen} == {True, False}
    assert any(not shared for _, shared, _ in seen)
    assert {codebook for _, _, codebook in seen} == {"mcg", "mul1"}


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_both_references_follow_the_definition(
    limit: float, experts: Experts, routing: tuple[Tensor, Tensor, Tensor], peak_error: Peak
) -> None:
    expected = token_by_token(*routing, experts, limit)
    assert peak_error(moe_reference(*routing, *experts, limit), expected) < 1e-5
    assert peak_error(moe_dense_reference(*routing, *map(dense, experts), limit), expected) < 1e-5


def test_dense_weights_of_16_bits(experts: Experts, routing: tuple[Tensor, Tensor, Tensor], peak_error: Peak) -> None:
    weights = [dense(tensors, torch.bfloat16) for tensors in experts]
    found = moe_dense_reference(*routing, *weights)
    assert found.dtype == torch.float32
    assert peak_error(found, token_by_token(*routing, experts, 0.0)) < 3e-2


def test_ids_outside_the_experts_add_nothing(experts: Experts, routing: tuple[Tensor, Tensor, Tensor]) -> None:
    x, ids, weights = routing
    only = moe_reference(x, ids[:, :1].clone(), weights[:, :1], *experts)
    for outside in (-1, -7, 4, 2**31):
        padded = torch.cat((ids[:, :1], torch.full((5, 1), outside)), 1)
        assert torch.equal(moe_reference(x, padded, weights, *experts), only)
    assert not moe_reference(x, torch.full_like(ids, -1), weights, *experts).any()


def test_an_unselected_expert_is_not_touched_by_nan(experts: Experts, routing: tuple[Tensor, Tensor, Tensor]) -> None:
    x, ids, weights = routing
    x = x.clone()
    x[0] = torch.nan
    found = moe_reference(x, ids, weights, *experts)
    assert found[0].isnan().all()
    assert found[1:].isfinite().all()


def test_order_of_the_slots_does_not_matter(experts: Experts, routing: tuple[Tensor, Tensor, Tensor]) -> None:
    x, ids, weights = routing
    assert torch.equal(
        moe_reference(x, ids, weights, *experts), moe_reference(x, ids.flip(1).int(), weights.flip(1), *experts)
    )


def test_no_tokens(experts: Experts) -> None:
    empty = torch.zeros(0, 256), torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2)
    assert moe_reference(*empty, *experts).shape == (0, 256)
    assert moe_dense_reference(*empty, *map(dense, experts)).shape == (0, 256)


def test_limit_caps_the_gate_above_and_up_on_both_sides() -> None:
    gate, up = torch.tensor([9.0, -9.0, 9.0, 1.0]), torch.tensor([9.0, 1.0, -9.0, 0.5])
    free = torch.nn.functional.silu(gate)
    assert torch.equal(gated_silu(gate, up, 2.0), torch.tensor([4.0, float(free[1]), -4.0, float(free[3]) * 0.5]))
    assert torch.equal(gated_silu(gate, up), free * up)


def test_what_does_not_fit_is_refused(experts: Experts, routing: tuple[Tensor, Tensor, Tensor]) -> None:
    x, ids, weights = routing
    gate, up, down = experts
    with pytest.raises(FormatError, match=r"expert-shape.*do not fit"):
        moe_reference(x, ids, weights, gate, up[:3], down)
    with pytest.raises(FormatError, match="expert-shape"):
        moe_reference(x[:, :128], ids, weights, gate, up, down)
    with pytest.raises(FormatError, match="routing-shape"):
        moe_reference(x[:4], ids, weights, gate, up, down)
    with pytest.raises(FormatError, match="expert-shape"):
        moe_dense_reference(x, ids, weights, dense(gate), dense(up), dense(gate))
