"""Parameters of a layer of routed experts, and the views of them that loader and kernels use.

vLLM's models rename `experts.<E>.gate_proj.<suffix>` and `.up_proj.` to `w13_<suffix>`, `.down_proj.` to
`w2_<suffix>`, so these are the names the parameters must have. Gate and up may differ in K: `w13_trellis` is
flat, all gates before all ups, and so each projection is contiguous whatever its K. Experts may differ in K too: their
trellises then follow one another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import torch

from glm53_exl3.errors import FormatError
from glm53_exl3.format.names import PROJECTIONS, Projection
from glm53_exl3.format.shards import shard_range
from glm53_exl3.format.tensors import SUH, SVH, TRELLIS, trellis_shape
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer, PackedSource
from glm53_exl3.pack.moe_layers import MoELayer, ProjectionSpec

#: Fused parameter of each projection.
FUSED: Final[Mapping[Projection, str]] = {"gate_proj": "w13", "up_proj": "w13", "down_proj": "w2"}
#: vLLM's shard ids.
SHARDS: Final[Mapping[str, Projection]] = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


#: A tensor of every local expert: stacked, or each by itself.
Stack = torch.Tensor | tuple[torch.Tensor, ...]
#: Their shape, with a leading expert axis, or that of each.
Shapes = tuple[int, ...] | list[tuple[int, int, int]]


@dataclass(frozen=True)
class LocalSizes:
    """What one rank holds of a layer.

    Attributes:
        num_experts: local experts.
        channels: which intermediate channels of each expert.
        experts: in the checkpoint, of each local one; empty where all experts are alike.
    """

    num_experts: int
    channels: range
    experts: tuple[int, ...] = ()


def local_sizes(
    layer: MoELayer, num_experts: int, hidden_size: int, intermediate_size: int, tp_size: int, tp_rank: int
) -> LocalSizes:
    """Compare what vLLM allots to this rank with what the pack holds.

    Args:
        layer: the layer as the pack holds it.
        num_experts: local experts.
        hidden_size: vLLM's hidden size of the layer.
        intermediate_size: vLLM's intermediate channels a rank.
        tp_size, tp_rank: how the experts' intermediate channels are cut.

    Raises:
        FormatError: `shard-cut` for a cut inside a Hadamard block, `layer-size` when vLLM pads or disagrees.
    """
    gate = layer.projections["gate_proj"]
    channels = shard_range(gate.out_features, tp_size, tp_rank, f"{layer.block}.*.gate_proj.{TRELLIS}")
    if (hidden_size, intermediate_size) != (gate.in_features, len(channels)):
        raise FormatError(
            "layer-size",
            f"{layer.block}: vLLM asks for other sizes than the pack holds",
            expected=f"hidden {gate.in_features}, intermediate {len(channels)} a rank",
            found=f"hidden {hidden_size}, intermediate {intermediate_size}",
            hint="serve with another parallel configuration; padded experts cannot be rotated",
        )
    return LocalSizes(num_experts, channels)


class ExpertParameters:
    """Parameters `w13_*` and `w2_*` registered on a vLLM layer.

    Args:
        module: vLLM's `RoutedExperts`.
        layer: the layer as the pack holds it.
        sizes: what this rank holds.
        loader: called by vLLM as `loader(param, loaded_weight, weight_name, shard_id, expert_id)`; gets the suffix
            of its parameter as keyword `suffix`.

    Attributes:
        names: names of the registered parameters.
        views: tensor with a leading expert axis by (projection, suffix); one of each expert where they differ in K.
    """

    def __init__(
        self, module: torch.nn.Module, layer: MoELayer, sizes: LocalSizes, loader: Callable[..., bool | None]
    ) -> None:
        self._layer = layer
        # The layer owns what holds this, so that a hold on it would keep both for ever.
        self._module = weakref.ref(module)
        self.names: list[str] = []
        self.views: dict[tuple[Projection, str], Stack] = {}
        self._members: dict[str, list[tuple[Projection, str, Shapes]]] = {}
        for fused in ("w13", "w2"):
            members = [projection for projection in PROJECTIONS if FUSED[projection] == fused]
            tensors = [local_tensors(layer.projections[projection], projection, sizes) for projection in members]
            for suffix, (dtype, _) in tensors[0].items():
                shapes = [tensor[suffix][1] for tensor in tensors]
                name = f"{fused}_{suffix}"
                self._register(module, name, sum(map(_numel, shapes)), dtype, loader, suffix)
                self._members[name] = [(one, suffix, shape) for one, shape in zip(members, shapes, strict=True)]
        self.refresh()

    def addresses(self) -> tuple[int, ...]:
        """Where each parameter begins now."""
        module = self._module()
        return () if module is None else tuple(getattr(module, name).data_ptr() for name in self.names)

    def refresh(self) -> None:
        """Make the views anew from the parameters, which somebody may have moved."""
        module = self._module()
        assert module is not None, "weights were asked for after their layer was gone"
        for name, members in self._members.items():
            flat = getattr(module, name).data
            parts = flat.split([_numel(shapes) for _, _, shapes in members])
            for (projection, suffix, shapes), part in zip(members, parts, strict=True):
                self.views[projection, suffix] = _view(part, shapes)

    def packed(self, projection: Projection) -> PackedExperts:
        """The loaded experts of one projection."""
        suh, svh = self.views[projection, SUH], self.views[projection, SVH]
        assert isinstance(suh, torch.Tensor)
        assert isinstance(svh, torch.Tensor)
        codebook = self._layer.projections[projection].codebook
        return PackedExperts(self.views[projection, TRELLIS], suh, svh, codebook)

    def layer_of(self, name: str, limit: float) -> PackedSource:
        """The weights of the whole layer, wherever they are moved; arguments as of :class:`PackedLayer`."""
        return _Weights(self, name, limit)

    def drop(self, module: torch.nn.Module) -> None:
        """Free the packed weights of a layer whose kernel keeps its own."""
        self.views.clear()
        for name in self.names:
            delattr(module, name)

    def _register(
        self,
        module: torch.nn.Module,
        name: str,
        size: int,
        dtype: torch.dtype,
        loader: Callable[..., bool | None],
        suffix: str,
    ) -> None:
        parameter: Any = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
        parameter.weight_loader = partial(loader, suffix=suffix)
        module.register_parameter(name, parameter)
        self.names.append(name)


class _Weights:
    """See :class:`glm53_exl3.kernels.interface.PackedSource`."""

    def __init__(self, parameters: ExpertParameters, name: str, limit: float) -> None:
        self._parameters, self._name, self._limit = parameters, name, limit

    def addresses(self) -> tuple[int, ...]:
        return self._parameters.addresses()

    def packed(self) -> PackedLayer:
        self._parameters.refresh()
        gate, up, down = (self._parameters.packed(projection) for projection in ("gate_proj", "up_proj", "down_proj"))
        return PackedLayer(self._name, gate, up, down, self._limit)


def _numel(shapes: Shapes) -> int:
    return sum(map(prod, shapes)) if isinstance(shapes, list) else prod(shapes)


def _view(flat: torch.Tensor, shapes: Shapes) -> Stack:
    if not isinstance(shapes, list):
        return flat.view(shapes)
    parts = flat.split([prod(shape) for shape in shapes])
    return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))


def local_tensors(
    spec: ProjectionSpec, projection: Projection, sizes: LocalSizes
) -> dict[str, tuple[torch.dtype, Shapes]]:
    """Dtype and shape, with a leading expert axis, of each tensor of one projection on this rank.

    Of the trellis a shape for each local expert, without that axis, where experts differ in bits.
    """
    width = len(sizes.channels)
    rows, columns = (spec.in_features, width) if projection != "down_proj" else (width, spec.out_features)
    trellis: Shapes = (sizes.num_experts, *trellis_shape(rows, columns, spec.bits))
    if spec.expert_bits:
        trellis = [trellis_shape(rows, columns, spec.bits_of(expert)) for expert in sizes.experts]
    tensors: dict[str, tuple[torch.dtype, Shapes]] = {
        TRELLIS: (torch.int16, trellis),
        SUH: (torch.float16, (sizes.num_experts, rows)),
        SVH: (torch.float16, (sizes.num_experts, columns)),
    }
    if spec.codebook != "3inst":
        tensors[spec.codebook] = (torch.int32, (sizes.num_experts,))
    return tensors
