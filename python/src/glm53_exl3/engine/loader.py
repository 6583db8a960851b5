"""Loading of one layer's experts: each tensor checked, cut to the rank's shard, and counted.

vLLM allocates parameters without initializing them, so a tensor that never arrives leaves random weights and no
message. Hence the count: what is missing, or arrives twice, is an error with its name in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from glm53_exl3.engine.parameters import SHARDS, LocalSizes
from glm53_exl3.errors import PackError
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
    """

    def __init__(self, layer: MoELayer, sizes: LocalSizes, local_expert: Callable[[int], int]) -> None:
        self._layer = layer
        self._sizes = sizes
        self._local_expert = local_expert
        self._loaded: dict[tuple[Projection, str], set[int]] = {}
        self.views: Mapping[tuple[Projection, str], torch.Tensor] = {}

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
            name = self._layer.tensor_name(expert_id, projection, suffix)
            loaded = self._loaded.setdefault((projection, suffix), set())
            if expert in loaded:
                raise PackError(
                    "tensor-doubled",
                    f"{name} was loaded twice",
                    hint="remove the shard that the index does not name for this tensor",
                )
            self._copy(name, loaded_weight, self.views[projection, suffix][expert], projection, suffix)
            loaded.add(expert)
        return expert >= 0 if return_success else None

    def _copy(self, name: str, tensor: torch.Tensor, target: torch.Tensor, projection: Projection, suffix: str) -> None:
        if suffix in MARKER_VALUES:
            _check_marker(name, tensor, suffix)
            target.copy_(tensor.reshape(()))
            return
        shard = local_shard(tensor, projection, suffix, self._sizes.channels)
        if shard.shape != target.shape or shard.dtype != target.dtype:
            raise PackError(
                "tensor-shape",
                f"{name} does not fit its layer",
                expected=f"{target.dtype} {list(target.shape)}",
                found=f"{shard.dtype} {list(shard.shape)} of {list(tensor.shape)}",
                hint=_REFETCH,
            )
        if suffix in (SUH, SVH) and not bool(torch.isfinite(shard).all()):
            raise PackError(
                "scale-not-finite",
                f"{name} holds NaN or infinity: every output of the expert would be NaN",
                expected="finite numbers",
                found=f"{int((~torch.isfinite(shard)).sum())} that are not",
                hint=_REFETCH,
            )
        target.copy_(shard)

    def require_complete(self) -> None:
        """Check that every tensor of every local expert was loaded, and forget the count.

        Raises:
            PackError: `tensor-missing`.
        """
        num_experts = self._sizes.num_experts
        for projection, suffix in self.views:
            loaded = self._loaded.get((projection, suffix), set())
            absent = sorted(set(range(num_experts)).difference(loaded))
            if absent:
                first = self._global_expert(absent[0])
                raise PackError(
                    "tensor-missing",
                    f"{self._layer.tensor_name(first, projection, suffix)} was not loaded",
                    expected=f"{num_experts} experts on this rank",
                    found=f"{len(loaded)}",
                    hint="fetch the pack again, all files of one commit",
                )
        self._loaded.clear()

    def _global_expert(self, local: int) -> int:
        experts = range(self._layer.num_experts)
        return next((expert for expert in experts if self._local_expert(expert) == local), local)


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
