"""The operator that stands for a layer: its fake, torch.compile, and how it finds its kernel."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import library

from glm53_exl3.engine.custom_op import KernelHolder
from glm53_exl3.engine.moe_method import to_local


class Doubling:
    """A kernel whose result is easy to know."""

    backend = "test"

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        return x * 2 * topk_weights.sum(1, keepdim=True).to(x.dtype)


@pytest.fixture
def holder() -> KernelHolder:
    holder = KernelHolder("model.layers.9.mlp.experts")
    holder.kernel = Doubling()
    return holder


def arguments(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(tokens, 8), torch.zeros(tokens, 2, dtype=torch.int32), torch.full((tokens, 2), 0.5)


def test_operator_passes_torchs_own_checks(holder: KernelHolder) -> None:
    library.opcheck(torch.ops.glm53_exl3.moe_forward.default, (*arguments(3), holder.key))


def test_operator_is_one_node_of_a_whole_graph(holder: KernelHolder) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def layer(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.ops.glm53_exl3.moe_forward(x, ids, weights, holder.key) + 1

    for tokens in (3, 5):
        x, ids, weights = arguments(tokens)
        torch.testing.assert_close(layer(x, ids, weights), x * 2 + 1)
    assert len(graphs) == 1
    assert any("moe_forward" in str(node.target) for node in graphs[0].graph.nodes)


def test_two_layers_of_one_name_keep_their_own_kernels(holder: KernelHolder) -> None:
    other = KernelHolder("model.layers.9.mlp.experts")
    assert other.key != holder.key
    other.kernel = lambda x, ids, weights: x * 0  # type: ignore[assignment]
    x, ids, weights = arguments(2)
    assert torch.equal(torch.ops.glm53_exl3.moe_forward(x, ids, weights, other.key), x * 0)
    assert torch.equal(torch.ops.glm53_exl3.moe_forward(x, ids, weights, holder.key), x * 2)


def test_name_is_free_again_when_its_layer_is_gone() -> None:
    first = KernelHolder("model.layers.8.mlp.experts")
    del first
    gc.collect()
    assert KernelHolder("model.layers.8.mlp.experts").key == "model.layers.8.mlp.experts"


def test_expert_map_gives_local_experts_and_minus_one_for_the_rest() -> None:
    expert_map = torch.tensor([-1, -1, 0, 1], dtype=torch.int32)
    ids = torch.tensor([[0, 2], [3, -1]], dtype=torch.int32)
    local = to_local(ids, expert_map)
    assert local.dtype == torch.int32
    assert local.tolist() == [[-1, 0], [1, -1]]
    assert to_local(ids, None) is ids
