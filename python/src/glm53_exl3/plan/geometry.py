"""What the attention layers of a model keep per token and per request, from its `config.json`.

Two families are known: models with plain attention in every layer (Glm4Moe, Qwen3Moe), and Glm5Next, where layers of
Kimi Delta Attention (KDA, a state of fixed size) alternate with sparse multi-head latent attention (MLA, a row per
token, and an indexer that keeps a row for every pool of tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from glm53_exl3.errors import PlanError
from glm53_exl3.pack.files import CONFIG_FILE

_GLM5NEXT: Final = ("glm5_next", "glm5_next_text")
_LINEAR: Final = "linear_attention"
#: Of GLM-5.3-Flash.
_EXPERTS_PER_TOKEN: Final = 8


@dataclass(frozen=True)
class PlainAttention:
    """Attention that keeps a key and a value per token in every layer.

    Attributes:
        num_layers: decoder layers.
        num_mtp_layers: layers of multi-token prediction, which have attention of the same kind.
        num_kv_heads: heads of keys and values.
        head_size: channels of one head.
    """

    num_layers: int
    num_mtp_layers: int
    num_kv_heads: int
    head_size: int


@dataclass(frozen=True)
class Glm5NextAttention:
    """KDA and sparse MLA layers of Glm5Next.

    Attributes:
        num_mla_layers: decoder layers with MLA and an indexer.
        num_kda_layers: decoder layers with KDA.
        num_mtp_layers: layers of multi-token prediction; each has MLA and an indexer.
        latent_size: channels of the MLA latent (`kv_lora_rank`).
        index_head_size: channels of an indexer key.
        index_pool_tokens: tokens that share one indexer row (`index_kpool`).
        kda_heads, kda_head_size: of the KDA state `[heads, head_size, head_size]`.
        kda_conv_kernel: taps of the short convolution before it.
    """

    num_mla_layers: int
    num_kda_layers: int
    num_mtp_layers: int
    latent_size: int
    index_head_size: int
    index_pool_tokens: int
    kda_heads: int
    kda_head_size: int
    kda_conv_kernel: int


@dataclass(frozen=True)
class ModelGeometry:
    """What the plan needs of `config.json`.

    Attributes:
        attention: one of the two families.
        hidden_size: channels between layers.
        num_experts: routed experts of a layer, 0 when it is not stated.
        experts_per_token: of the routed ones, 8 when it is not stated.
        expert_size: intermediate channels of one routed expert.
        widest_layer: channels of the widest intermediate of a layer.
        residual_streams: hidden states that are carried side by side (`hc_mult`), 1 for most models.
        vocabulary: tokens.
        longest_context_tokens: `max_position_embeddings`.
    """

    attention: PlainAttention | Glm5NextAttention
    hidden_size: int
    num_experts: int
    experts_per_token: int
    expert_size: int
    widest_layer: int
    residual_streams: int
    vocabulary: int
    longest_context_tokens: int


def model_geometry(config: Mapping[str, Any]) -> ModelGeometry:
    """The geometry of a model.

    Defaults are those of transformers' `Glm5NextTextConfig` 5.19; fields that have no default there must be present.

    Raises:
        PlanError: `plan-config`, a field is absent or is no positive number.
    """
    nested = config.get("text_config")
    text = _Fields(nested if isinstance(nested, Mapping) else config)
    return ModelGeometry(
        attention=_glm5next(text) if text.raw.get("model_type") in _GLM5NEXT else _plain(text),
        hidden_size=text.size("hidden_size"),
        num_experts=text.count("n_routed_experts") or text.count("num_experts"),
        experts_per_token=text.count("num_experts_per_tok") or _EXPERTS_PER_TOKEN,
        expert_size=text.size("moe_intermediate_size"),
        widest_layer=max(text.size("intermediate_size", 1), text.size("moe_intermediate_size")),
        residual_streams=text.size("hc_mult", 4 if text.raw.get("model_type") in _GLM5NEXT else 1),
        vocabulary=text.size("vocab_size"),
        longest_context_tokens=text.size("max_position_embeddings"),
    )


def plain_attention(config: Mapping[str, Any]) -> PlainAttention:
    """The attention of a model that has the plain kind in every layer, whatever its other sizes.

    Raises:
        PlanError: `plan-config`.
    """
    nested = config.get("text_config")
    return _plain(_Fields(nested if isinstance(nested, Mapping) else config))


def _plain(text: _Fields) -> PlainAttention:
    heads = text.size("num_attention_heads")
    return PlainAttention(
        num_layers=text.size("num_hidden_layers"),
        num_mtp_layers=text.count("num_nextn_predict_layers"),
        num_kv_heads=text.size("num_key_value_heads", heads),
        head_size=text.size("head_dim", max(1, text.size("hidden_size") // heads)),
    )


def _glm5next(text: _Fields) -> Glm5NextAttention:
    num_layers = text.size("num_hidden_layers")
    linear = text.raw.get("linear_attn_config")
    kda = _Fields(linear if isinstance(linear, Mapping) else {})
    num_kda = _num_kda_layers(text.raw.get("layer_types"), num_layers)
    return Glm5NextAttention(
        num_mla_layers=num_layers - num_kda,
        num_kda_layers=num_kda,
        num_mtp_layers=text.count("num_nextn_predict_layers"),
        latent_size=text.size("kv_lora_rank", 512),
        index_head_size=text.size("index_head_dim", 128),
        index_pool_tokens=text.size("index_kpool", 16),
        kda_heads=kda.size("num_heads", text.size("linear_num_heads", 64)),
        kda_head_size=kda.size("head_dim", text.size("linear_head_dim", 128)),
        kda_conv_kernel=kda.size("short_conv_kernel_size", text.size("linear_conv_kernel_dim", 4)),
    )


def _num_kda_layers(layer_types: Any, num_layers: int) -> int:
    if isinstance(layer_types, list) and len(layer_types) >= num_layers:
        return sum(kind == _LINEAR for kind in layer_types[:num_layers])
    # Default schedule of transformers: every fourth layer is MLA.
    return sum(layer % 4 != 3 for layer in range(num_layers))


class _Fields:
    """Positive numbers of a JSON object, by name."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def size(self, key: str, default: int | None = None) -> int:
        value = self.raw.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise PlanError(
                "plan-config",
                f"{CONFIG_FILE}: {key} is {str(value)[:40]}",
                expected="a positive whole number",
                hint=f"fetch {CONFIG_FILE} of the pack again; without it no memory plan can be made",
            )
        return value

    def count(self, key: str) -> int:
        return self.size(key) if self.raw.get(key) else 0
