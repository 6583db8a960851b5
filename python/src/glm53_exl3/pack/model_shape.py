"""Which routed experts a checkpoint should have, from its `config.json`.

Field names differ between architectures: Glm4Moe and Glm5Next say `n_routed_experts`, Qwen3Moe `num_experts`;
multimodal checkpoints keep all of it in `text_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from glm53_exl3.errors import PackError
from glm53_exl3.pack.files import CONFIG_FILE

#: Far above every size that a real model has, and small enough to count up to.
_LARGEST: Final = 1_000_000


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
        num_layers: decoder layers, with and without routed experts.
        experts_per_token: routed experts that one token runs through in a layer, 0 when it is not stated.
        tied_embeddings: whether the output head is the embedding matrix, so that there is no `lm_head`.
        vocabulary: rows of the embedding matrix, 0 when it is not stated.
    """

    architecture: str
    hidden_size: int
    expert_size: int
    num_experts: int
    moe_layers: tuple[int, ...]
    mtp_layers: tuple[int, ...]
    num_layers: int
    experts_per_token: int = 0
    tied_embeddings: bool = False
    vocabulary: int = 0


def model_shape(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape a `config.json` describes, or None when it describes no mixture of experts.

    Raises:
        PackError: `config-value`, a size that cannot be one.
    """
    architectures = config.get("architectures")
    nested = config.get("text_config")
    text = nested if isinstance(nested, Mapping) else config
    num_experts = _size(text, "n_routed_experts") or _size(text, "num_experts")
    expert_size = _size(text, "moe_intermediate_size")
    hidden_size = _size(text, "hidden_size")
    num_layers = _size(text, "num_hidden_layers")
    if not (num_experts and expert_size and hidden_size and num_layers):
        return None
    num_mtp = _size(text, "num_nextn_predict_layers")
    return ModelShape(
        architecture=_printable(architectures[0]) if isinstance(architectures, list) and architectures else "",
        hidden_size=hidden_size,
        expert_size=expert_size,
        num_experts=num_experts,
        moe_layers=tuple(layer for layer in range(num_layers) if _is_moe(text, layer)),
        mtp_layers=tuple(range(num_layers, num_layers + num_mtp)),
        num_layers=num_layers,
        experts_per_token=_size(text, "num_experts_per_tok"),
        tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        vocabulary=_size(text, "vocab_size"),
    )


def _printable(value: object) -> str:
    text = str(value)[:200]
    return text if text.isprintable() else ascii(text)


def _size(text: Mapping[str, Any], key: str) -> int:
    """A number of the config, 0 when it is absent or null."""
    value = text.get(key)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise PackError(
            "config-value",
            f"{CONFIG_FILE}: {key} is {str(value)[:40]!r}",
            expected=f"a whole number from 0 to {_LARGEST}",
            hint=f"fetch {CONFIG_FILE} of the pack again",
        )
    return value


def _is_moe(text: Mapping[str, Any], layer: int) -> bool:
    types = text.get("mlp_layer_types")
    if isinstance(types, list) and types:
        return layer < len(types) and bool(types[layer] == "sparse")
    if text.get("first_k_dense_replace") is not None:
        return layer >= _size(text, "first_k_dense_replace")
    if text.get("model_type") == "glm5_next_text":
        # Default of transformers' Glm5NextTextConfig: the first three layers are dense.
        return layer >= 3
    dense = text.get("mlp_only_layers")
    if isinstance(dense, list) and layer in dense:
        return False
    return (layer + 1) % (_size(text, "decoder_sparse_step") or 1) == 0
