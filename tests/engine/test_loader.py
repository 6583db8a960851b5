"""Loading of experts into the parameters vLLM's models look for: shards, counts and refusals."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from glm53_exl3.engine.loader import ExpertLoader, local_shard
from glm53_exl3.engine.parameters import ExpertParameters, local_sizes
from glm53_exl3.errors import FormatError, KernelError, PackError
from glm53_exl3.format.names import parse_expert, split_tensor
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.pack.moe_layers import MoELayer
from support.packs import MCG, PackRecipe, expert_tensors, write_pack

SHARD_OF = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


class Rank:
    """One rank's module, parameters and loader, filled as vLLM's models do it."""

    def __init__(
        self,
        layer: MoELayer,
        *,
        num_experts: int | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        local_expert: Callable[[int], int] = lambda expert: expert,
    ) -> None:
        gate = layer.projections["gate_proj"]
        sizes = local_sizes(
            layer,
            num_experts or layer.num_experts,
            gate.in_features,
            gate.out_features // tp_size,
            tp_size,
            tp_rank,
        )
        self.module = torch.nn.Module()
        self.loader = ExpertLoader(layer, sizes, local_expert)
        self.parameters = ExpertParameters(self.module, layer, self.loader.sizes, self.loader)
        self.loader.views = self.parameters.views

    def load(self, name: str, tensor: torch.Tensor) -> bool | None:
        module, suffix = split_tensor(name)
        expert = parse_expert(module)
        assert expert is not None
        fused = "w2" if expert.projection == "down_proj" else "w13"
        parameter = self.module.get_parameter(f"{fused}_{suffix}")
        result: bool | None = parameter.weight_loader(  # type: ignore[operator]
            parameter,
            tensor,
            f"x.experts.routed_experts.{fused}_{suffix}",
            shard_id=SHARD_OF[expert.projection],
            expert_id=expert.expert,
            return_success=True,
        )
        return result

    def load_all(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self.load(name, tensor)


def prepared(tmp_path: Path, recipe: PackRecipe) -> tuple[MoELayer, dict[str, torch.Tensor]]:
    layer = next(iter(read_inventory(write_pack(tmp_path, recipe)).layers.values()))
    tensors = {name: torch.from_numpy(array) for name, array in expert_tensors(recipe, layer.layer).items()}
    return layer, tensors


STATED = {"quant_method": "exl3"}
BY_PROJECTION = PackRecipe(bits={1: (2, 3, 4)}, stated=STATED, width=256)
BY_EXPERT = PackRecipe(bits={1: [(2, 3, 4), (2, 3, 6), (2, 3, 4), (2, 5, 4)]}, stated=STATED, width=256)


@pytest.fixture(params=[BY_PROJECTION, BY_EXPERT], ids=["by projection", "by expert"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MoELayer, dict[str, torch.Tensor]]:
    """A layer whose gate, up and down have 2, 3 and 4 bits, but for some experts; wide enough for two ranks."""
    return prepared(tmp_path, request.param)


def test_every_tensor_lands_in_its_view(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    rank = Rank(layer)
    rank.load_all(tensors)
    rank.loader.require_complete()
    for number, (projection, bits) in enumerate((("gate_proj", 2), ("up_proj", 3), ("down_proj", 4))):
        packed = rank.parameters.packed(projection)
        rates = layer.rates[number]
        assert packed.bits == (bits if len(rates) == 1 else 0)
        assert packed.rate_text == "+".join(map(str, rates))
        assert all(trellis.is_contiguous() for trellis in packed.trellis)
        for expert in range(layer.num_experts):
            assert packed.rates[expert] == layer.projections[projection].bits_of(expert)
            for suffix in ("trellis", "suh", "svh"):
                stored = tensors[layer.tensor_name(expert, projection, suffix)]
                assert torch.equal(getattr(packed, suffix)[expert], stored)


def test_parameters_have_the_names_vllm_maps_to(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    names = {name for name, _ in Rank(mixed[0]).module.named_parameters()}
    assert names == {f"{fused}_{suffix}" for fused in ("w13", "w2") for suffix in ("trellis", "suh", "svh", "mcg")}


def test_two_ranks_hold_complementary_shards(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    ranks = [Rank(layer, tp_size=2, tp_rank=rank) for rank in range(2)]
    for rank in ranks:
        rank.load_all(tensors)
        rank.loader.require_complete()
    for projection, tiles, whole, cut in (
        ("gate_proj", 1, "suh", "svh"),
        ("up_proj", 1, "suh", "svh"),
        ("down_proj", 0, "svh", "suh"),
    ):
        parts = [rank.parameters.packed(projection) for rank in ranks]
        stored = {s: tensors[layer.tensor_name(2, projection, s)] for s in ("trellis", "suh", "svh")}
        assert torch.equal(torch.cat([part.trellis[2] for part in parts], dim=tiles), stored["trellis"])
        assert torch.equal(torch.cat([getattr(part, cut)[2] for part in parts]), stored[cut])
        assert all(torch.equal(getattr(part, whole)[2], stored[whole]) for part in parts)


def test_expert_parallel_rank_takes_its_experts_only(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    rank = Rank(layer, num_experts=2, local_expert=lambda expert: expert - 2 if expert >= 2 else -1)
    name = layer.tensor_name(0, "up_proj", "suh")
    assert rank.load(name, tensors[name]) is False
    assert rank.load(layer.tensor_name(3, "up_proj", "suh"), tensors[layer.tensor_name(3, "up_proj", "suh")]) is True
    del tensors[layer.tensor_name(3, "up_proj", "suh")]
    rank.load_all(tensors)
    rank.loader.require_complete()
    assert torch.equal(
        rank.parameters.packed("down_proj").trellis[1], tensors[layer.tensor_name(3, "down_proj", "trellis")]
    )


def test_copies_of_experts_of_different_bits_are_refused(tmp_path: Path) -> None:
    layer, _ = prepared(tmp_path, BY_EXPERT)
    with pytest.raises(KernelError, match="experts have different bits, and ranks hold copies") as caught:
        Rank(layer, num_experts=5)
    assert caught.value.hint == "leave --enable-eplb out"
    Rank(prepared(tmp_path / "even", BY_PROJECTION)[0], num_experts=5)


def test_the_forks_call_without_return_success(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    parameter = Rank(layer).module.get_parameter("w13_suh")
    tensor = tensors[layer.tensor_name(0, "gate_proj", "suh")]
    assert parameter.weight_loader(parameter, tensor, "w13_suh", expert_id=0, shard_id="w1") is None  # type: ignore[operator]


def test_three_inst_needs_no_marker(tmp_path: Path) -> None:
    layer, tensors = prepared(tmp_path, PackRecipe(bits={1: 2}, stated=STATED, codebook="3inst"))
    rank = Rank(layer)
    rank.load_all(tensors)
    rank.loader.require_complete()
    assert rank.parameters.packed("gate_proj").codebook == "3inst"


def test_dropped_parameters_are_gone(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    rank = Rank(mixed[0])
    rank.parameters.drop(rank.module)
    assert list(rank.module.parameters()) == []


def test_missing_tensor_is_named(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    name = layer.tensor_name(2, "up_proj", "svh")
    del tensors[name]
    rank = Rank(layer)
    rank.load_all(tensors)
    with pytest.raises(PackError, match=name) as caught:
        rank.loader.require_complete()
    assert caught.value.id == "tensor-missing"


def test_missing_tensor_of_a_later_rank_has_its_name_in_the_pack(
    mixed: tuple[MoELayer, dict[str, torch.Tensor]],
) -> None:
    layer, tensors = mixed
    name = layer.tensor_name(3, "gate_proj", "trellis")
    del tensors[name]
    rank = Rank(layer, num_experts=2, local_expert=lambda expert: expert - 2 if expert >= 2 else -1)
    rank.load_all(tensors)
    with pytest.raises(PackError, match=name):
        rank.loader.require_complete()


def test_doubled_tensor_is_named(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    name = layer.tensor_name(0, "down_proj", "trellis")
    rank = Rank(layer)
    rank.load(name, tensors[name])
    with pytest.raises(PackError, match=f"{name} was loaded twice"):
        rank.load(name, tensors[name])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("suffix", ["suh", "svh"])
def test_scale_that_is_not_finite_is_named(
    mixed: tuple[MoELayer, dict[str, torch.Tensor]], suffix: str, value: float
) -> None:
    layer, tensors = mixed
    name = layer.tensor_name(1, "gate_proj", suffix)
    tensors[name][5] = value
    with pytest.raises(PackError, match=name) as caught:
        Rank(layer).load(name, tensors[name])
    assert caught.value.id == "scale-not-finite"


@pytest.mark.parametrize("marker", [torch.tensor(MCG + 1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)])
def test_wrong_marker_is_named(mixed: tuple[MoELayer, dict[str, torch.Tensor]], marker: torch.Tensor) -> None:
    layer, _ = mixed
    with pytest.raises(PackError, match=r"experts\.0\.gate_proj\.mcg") as caught:
        Rank(layer).load(layer.tensor_name(0, "gate_proj", "mcg"), marker)
    assert caught.value.id == "marker-value"


def test_tensor_of_another_shape_or_dtype_is_named(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    layer, tensors = mixed
    name = layer.tensor_name(0, "gate_proj", "suh")
    for tensor in (tensors[name][:128], tensors[name].float()):
        with pytest.raises(PackError, match=name) as caught:
            Rank(layer).load(name, tensor)
        assert caught.value.id == "tensor-shape"


def test_cut_inside_a_hadamard_block_is_refused(tmp_path: Path) -> None:
    layer, _ = prepared(tmp_path, PackRecipe(bits={1: 2}, stated=STATED, width=128))
    with pytest.raises(FormatError, match=r"model\.layers\.1\.mlp\.experts\.\*\.gate_proj\.trellis") as caught:
        Rank(layer, tp_size=2)
    assert caught.value.id == "shard-cut"
    assert "64 a rank" in caught.value.what


def test_padded_layer_is_refused(mixed: tuple[MoELayer, dict[str, torch.Tensor]]) -> None:
    with pytest.raises(FormatError, match="other sizes") as caught:
        local_sizes(mixed[0], 4, 512, 256, 1, 0)
    assert caught.value.id == "layer-size"


def test_local_shard_cuts_down_along_its_inputs() -> None:
    trellis = torch.arange(16 * 8).view(16, 8, 1)
    assert torch.equal(local_shard(trellis, "down_proj", "trellis", range(128, 256)), trellis[8:])
    assert torch.equal(local_shard(trellis, "up_proj", "trellis", range(64, 128)), trellis[:, 4:])
