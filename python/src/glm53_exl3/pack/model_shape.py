"""Which routed experts a checkpoint should have, from its `config.json`.

Field names differ between architectures: Glm4Moe and Glm5Next say `n_routed_experts`, Qwen3Moe `num_experts`;
multimodal checkpoints keep all of it in `text_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the mixture-of-experts part of a model.

    Attributes:
        architecture: first entry of `architectures`, or an empty string.
        hidden_size: channels between layers.
        expert_size: intermediate channels of one routed expert.
        num_experts: routed experts of a layer.
        moe_layers: indices of the decoder layers that have routed experts.
        mtp_layers: indices of the multi-token-prediction layers after them; a pack may leave these out.
    """

    architecture: str
    hidden_size: int
    expert_size: int
    num_experts: int
    moe_layers: tuple[int, ...]
    mtp_layers: tuple[int, ...]


def model_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape a `config.json` describes, or None when it describes no mixture of experts."""
    architectures = config.get("architectures") or [""]
    text = config.get("text_config") or config
    num_experts = text.get("n_routed_experts") or text.get("num_experts")
    expert_size = text.get("moe_intermediate_size")
    hidden_size = text.get("hidden_size")
    num_layers = text.get("num_hidden_layers")
    if not (num_experts and expert_size and hidden_size and num_layers):
        return None
    num_mtp = text.get("num_nextn_predict_layers") or 0
    return ModelShape(
        architecture=str(architectures[0]),
        hidden_size=int(hidden_size),
        expert_size=int(expert_size),
        num_experts=int(num_experts),
        moe_layers=tuple(layer for layer in range(num_layers) if _is_moe(text, layer)),
        mtp_layers=tuple(range(num_layers, num_layers + num_mtp)),
    )


def _is_moe(text: Mapping[str, Any], layer: int) -> bool:
    types = text.get("mlp_layer_types")
    if types:
        return bool(layer < len(types) and types[layer] == "sparse")
    if "first_k_dense_replace" in text:
        return bool(layer >= text["first_k_dense_replace"])
    if text.get("model_type") == "glm5_next_text":
        # Default of transformers' Glm5NextTextConfig: the first three layers are dense.
        return layer >= 3
    step = text.get("decoder_sparse_step") or 1
    return layer not in (text.get("mlp_only_layers") or []) and (layer + 1) % step == 0
