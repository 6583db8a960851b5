"""`Exl3MoEMethod`: how vLLM's `RoutedExperts` makes, loads and runs EXL3 experts."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.config import CUDAGraphMode, get_current_vllm_config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from glm53_exl3.engine import custom_op
from glm53_exl3.engine.loader import ExpertLoader
from glm53_exl3.engine.parameters import ExpertParameters, local_sizes
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.select import build_kernel
from glm53_exl3.kernels.settings import kernel_settings
from glm53_exl3.pack.moe_layers import MoELayer

logger = logging.getLogger("vllm.glm53_exl3.engine")


class Exl3MoEMethod(FusedMoEMethodBase):
    """Routed experts of one layer.

    Args:
        moe: vLLM's configuration of the layer.
        pack_layer: the layer as the pack holds it.
        prefix: vLLM's name of the layer.
    """

    def __init__(self, moe: FusedMoEConfig, pack_layer: MoELayer, prefix: str) -> None:
        super().__init__(moe)
        self._pack_layer = pack_layer
        self._prefix = prefix
        self._settings = kernel_settings()
        self._holder = custom_op.KernelHolder(prefix)
        self._dtype = torch.bfloat16
        vllm_config = get_current_vllm_config()
        self._captures_graphs = vllm_config.compilation_config.cudagraph_mode != CUDAGraphMode.NONE
        self._max_tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self._parameters: ExpertParameters | None = None
        self._loader: ExpertLoader | None = None

    @property
    def layer(self) -> MoELayer:
        """The layer as the pack holds it."""
        return self._pack_layer

    @property
    def expert_loader(self) -> ExpertLoader | None:
        """Loader of the layer's parameters, as long as there are any."""
        return self._loader

    @property
    def parameter_names(self) -> Sequence[str]:
        """Names of the layer's parameters."""
        return () if self._parameters is None else self._parameters.names

    def create_weights(
        self,
        layer: RoutedExperts,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register the packed parameters.

        Raises:
            FormatError: the shard cannot be cut here.
            KernelError: the layer wants something the kernels do not do.
        """
        self._require_supported(layer)
        sizes = local_sizes(
            self._pack_layer,
            num_experts,
            hidden_size,
            intermediate_size_per_partition,
            self.moe.tp_size,
            self.moe.tp_rank,
        )
        self._dtype = params_dtype
        self._loader = ExpertLoader(self._pack_layer, sizes, _local_expert_of(layer))
        self._parameters = ExpertParameters(layer, self._pack_layer, self._loader.sizes, self._loader)
        self._loader.views = self._parameters.views

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        """Build the kernel from the loaded weights.

        Raises:
            PackError: a tensor of a local expert was not loaded.
            KernelError: no backend can do what the engine will ask of it.
        """
        assert self._parameters is not None
        assert self._loader is not None
        self._loader.require_complete()
        parameters = self._parameters
        source = parameters.layer_of(self._prefix, swiglu_limit(layer))
        packed = source.packed()
        kernel = build_kernel(
            source,
            self._dtype,
            self._settings,
            captures_graphs=self._captures_graphs,
            max_tokens=self._max_tokens,
            top_k=self.moe.experts_per_token,
        )
        self._holder.kernel = kernel
        logger.info(
            "%s: %d EXL3 experts, %s, bits %s/%s/%s (gate/up/down), %s backend",
            self._prefix,
            packed.gate.num_experts,
            packed.gate.codebook,
            packed.gate.rate_text,
            packed.up.rate_text,
            packed.down.rate_text,
            kernel.backend,
        )
        if not kernel.keeps_packed_weights:
            parameters.drop(layer)
            self._parameters = self._loader = None

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> FusedMoEQuantConfig | None:
        """None: vLLM's own kernels are not used."""
        return None

    def apply(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the chosen experts of this rank.

        Args:
            layer: the layer.
            x: activations `[T, hidden]`.
            topk_weights: fp32 `[T, k]`.
            topk_ids: global experts `[T, k]`.
            shared_experts: run by vLLM's own runner, ignored here.
            shared_experts_input: likewise.

        Returns:
            `[T, hidden]` in the dtype of `x`, not yet summed over ranks.
        """
        local_ids = to_local(topk_ids, layer.expert_map)
        output: torch.Tensor = torch.ops.glm53_exl3.moe_forward(x, local_ids, topk_weights, self._holder.key)
        return output

    def _require_supported(self, layer: RoutedExperts) -> None:
        alpha, beta = getattr(layer, "swiglu_alpha", None), getattr(layer, "swiglu_beta", None)
        unsupported = {
            f"activation {layer.activation.value}": layer.activation != MoEActivation.SILU,
            "router weights on the input": layer.apply_router_weight_on_input,
            "expert biases": self.moe.has_bias,
            f"SwiGLU with alpha {alpha} and beta {beta}": alpha is not None or beta is not None,
        }
        for what, wanted in unsupported.items():
            if wanted:
                raise KernelError(
                    "layer-unsupported",
                    f"{self._prefix} has {what}",
                    expected="SwiGLU experts without biases",
                    hint="this architecture is not supported; open an issue that names the model",
                )


def _local_expert_of(layer: RoutedExperts) -> Callable[[int], int]:
    """The layer's map from global to local experts, without a hold on the layer.

    vLLM keeps what belongs to a parameter, its weight loader too, in a table until the layer is gone: a loader that
    held the layer would keep it, and its weights, for ever.
    """
    reference = weakref.ref(layer)

    def local_expert(expert: int) -> int:
        living = reference()
        assert living is not None, "a weight arrived after its layer was gone"
        local: int = living._map_global_expert_id_to_local_expert_id(expert)
        return local

    return local_expert


def swiglu_limit(layer: RoutedExperts) -> float:
    """The SwiGLU limit of a layer, 0 for none.

    vLLM caps the gate before SiLU, EXL3 kernels after it; at GLM-5.3-Flash's limit of 10 the two differ by less
    than 5e-4.
    """
    limit = getattr(layer, "swiglu_limit", None) or getattr(layer.moe_config, "swiglu_limit", None)
    return float(limit or 0.0)


def to_local(topk_ids: torch.Tensor, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Local expert of each choice `[T, k]`, -1 for experts of other ranks and for padding.

    Args:
        topk_ids: global experts `[T, k]`, negative for padding.
        expert_map: int32 `[global experts]`, local index or -1; None when every expert is local.
    """
    if expert_map is None:
        return topk_ids
    return torch.where(topk_ids >= 0, expert_map[topk_ids.clamp(min=0).long()].to(topk_ids.dtype), -1)
