"""Loading of one layer's experts: each tensor checked, cut to the rank's shard, and counted.

vLLM allocates parameters without initializing them, so a tensor that never arrives leaves random weights and no
message. Hence the count: what is missing, or arrives twice, is an error with its name in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import torch

from glm53_exl3.engine.parameters import SHARDS, LocalSizes, Stack
from glm53_exl3.errors import KernelError, PackError
from glm53_exl3.format.codebooks import MARKER_VALUES
from glm53_exl3.format.names import Projection
from glm53_exl3.format.tensors import SUH, SVH, TILE, TRELLIS
from glm53_exl3.pack.moe_layers import MoELayer

_REFETCH = "fetch the shard that holds this tensor again"


def local_shard(tensor: torch.Tensor, projection: Projection, suffix: str, channels: range) -> torch.Tensor:
    """The part of a stored tensor that belongs to the intermediate channels `channels`.

    Gate and up are cut along their outputs, down along its inputs; the scales of the other side and the markers
    are whole on every rank.
    """
    cut_side = SUH if projection == "down_proj" else SVH
    if suffix == cut_side:
        return tensor[channels.start : channels.stop]
    if suffix != TRELLIS:
        return tensor
    tiles = slice(channels.start // TILE, channels.stop // TILE)
    return tensor[tiles] if projection == "down_proj" else tensor[:, tiles]


class ExpertLoader:
    """Weight loader of one layer.

    Args:
        layer: the layer as the pack holds it.
        sizes: what this rank holds.
        local_expert: local index of a global expert, -1 for one of another rank.

    Raises:
        KernelError: `layer-unsupported`, ranks hold copies of experts that differ in bits.

    Attributes:
        layer: as given.
        sizes: as given; with the experts where they differ in K.
        views: tensor with a leading expert axis by (projection, suffix); one of each expert where they differ in K.
    """

    def __init__(self, layer: MoELayer, sizes: LocalSizes, local_expert: Callable[[int], int]) -> None:
        self.layer = layer
        self._local_expert = local_expert
        # How large the trellis of a local expert is depends on which it is, where experts differ in bits.
        self.sizes = replace(sizes, experts=self._local_experts(sizes.num_experts)) if layer.is_mixed else sizes
        self._loaded: dict[tuple[Projection, str], set[int]] = {}
        self.views: Mapping[tuple[Projection, str], Stack] = {}

    def __call__(
        self,
        param: torch.nn.Parameter,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
        *,
        suffix: str,
    ) -> bool | None:
        """Load one tensor of one expert.

        The arguments before `suffix` are vLLM's; its fork of August 2026 does not pass `return_success`.

        Returns:
            Whether this rank holds the expert, when `return_success`; else None.

        Raises:
            PackError: the tensor does not fit, is not finite, or was loaded before.
        """
        projection = SHARDS[shard_id]
        expert = self._local_expert(expert_id)
        if expert >= 0:
            name = self.layer.tensor_name(expert_id, projection, suffix)
            loaded = self._loaded.setdefault((projection, suffix), set())
            if expert in loaded:
                raise _doubled(name)
            self._copy(name, loaded_weight, self.views[projection, suffix][expert], projection, suffix)
            loaded.add(expert)
        return expert >= 0 if return_success else None

    def _local_experts(self, num_experts: int) -> tuple[int, ...]:
        if sorted(self.experts) != list(range(num_experts)):
            raise KernelError(
                "layer-unsupported",
                f"{self.layer.block}: experts have different bits, and ranks hold copies of experts",
                expected="each expert once",
                hint="leave --enable-eplb out",
            )
        return tuple(self.experts[slot] for slot in range(num_experts))

    @cached_property
    def experts(self) -> dict[int, int]:
        """Expert in the checkpoint by local index, for every expert that this rank holds."""
        local = ((self._local_expert(expert), expert) for expert in range(self.layer.num_experts))
        return {slot: expert for slot, expert in local if slot >= 0}

    def names(self, projection: Projection, suffix: str) -> dict[int, str]:
        """Names in the checkpoint of one tensor of every local expert, by local index."""
        return {slot: self.layer.tensor_name(expert, projection, suffix) for slot, expert in self.experts.items()}

    def accept(self, projection: Projection, suffix: str, values: torch.Tensor) -> None:
        """Check and count one tensor of all local experts that was put into its place by other means.

        Args:
            projection: of which matrix.
            suffix: which of its tensors.
            values: what arrived, `[E, ...]`; need not be the view itself.

        Raises:
            PackError: a value is none that may be there, or the tensor was loaded before.
        """
        names = self.names(projection, suffix)
        loaded = self._loaded.setdefault((projection, suffix), set())
        if loaded:
            raise _doubled(names[min(loaded)])
        if suffix in MARKER_VALUES:
            sound = values == MARKER_VALUES[suffix]
        elif suffix in (SUH, SVH):
            sound = torch.isfinite(values).all(dim=-1)
        else:
            sound = torch.ones(len(values), dtype=torch.bool, device="cpu")
        for slot in torch.nonzero(~sound).flatten().tolist()[:1]:
            _check_values(names[slot], values[slot], suffix)
        loaded.update(names)

    def _copy(self, name: str, tensor: torch.Tensor, target: torch.Tensor, projection: Projection, suffix: str) -> None:
        if suffix in MARKER_VALUES:
            # The bits are the same, whichever of the two integers the header says.
            marker = tensor.view(torch.int32) if tensor.dtype == torch.uint32 else tensor
            _check_values(name, marker, suffix)
            target.copy_(marker.reshape(()))
            return
        shard = local_shard(tensor, projection, suffix, self.sizes.channels)
        if shard.shape != target.shape or shard.dtype != target.dtype:
            raise PackError(
                "tensor-shape",
                f"{name} does not fit its layer",
                expected=f"{target.dtype} {list(target.shape)}",
                found=f"{shard.dtype} {list(shard.shape)} of {list(tensor.shape)}",
                hint=_REFETCH,
            )
        _check_values(name, shard, suffix)
        target.copy_(shard)

    def require_complete(self) -> None:
        """Check that every tensor of every local expert was loaded, and forget the count.

        Raises:
            PackError: `tensor-missing`.
        """
        num_experts = self.sizes.num_experts
        for projection, suffix in self.views:
            loaded = self._loaded.get((projection, suffix), set())
            absent = sorted(set(range(num_experts)).difference(loaded))
            if absent:
                first = self.experts.get(absent[0], absent[0])
                raise PackError(
                    "tensor-missing",
                    f"{self.layer.tensor_name(first, projection, suffix)} was not loaded",
                    expected=f"{num_experts} experts on this rank",
                    found=f"{len(loaded)}",
                    hint="fetch the pack again, all files of one commit",
                )
        self._loaded.clear()


def _doubled(name: str) -> PackError:
    return PackError(
        "tensor-doubled",
        f"{name} was loaded twice",
        hint="remove the shard that the index does not name for this tensor",
    )


def _check_values(name: str, tensor: torch.Tensor, suffix: str) -> None:
    if suffix in MARKER_VALUES:
        _check_marker(name, tensor, suffix)
    elif suffix in (SUH, SVH) and not bool(torch.isfinite(tensor).all()):
        raise PackError(
            "scale-not-finite",
            f"{name} holds NaN or infinity: every output of the expert would be NaN",
            expected="finite numbers",
            found=f"{int((~torch.isfinite(tensor)).sum())} that are not",
            hint=_REFETCH,
        )


def _check_marker(name: str, tensor: torch.Tensor, codebook: str) -> None:
    value = int(tensor.reshape(-1)[0]) if tensor.numel() == 1 else None
    if value != MARKER_VALUES[codebook]:
        raise PackError(
            "marker-value",
            f"{name} is not the marker of {codebook}",
            expected=str(MARKER_VALUES[codebook]),
            found=str(value if value is not None else f"{tensor.numel()} values"),
            hint=_REFETCH,
        )
