"""Reads what a plan needs from a pack and a draft model: headers and `config.json`, no weights."""

from __future__ import annotations

import math
from pathlib import Path

from glm53_exl3.format.tensors import trellis_shape
from glm53_exl3.pack import files
from glm53_exl3.pack.census import census
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.pack.moe_layers import MoELayer
from glm53_exl3.pack.safetensors_header import read_header
from glm53_exl3.pack.serving import compiled_backends
from glm53_exl3.plan.geometry import ModelGeometry, model_geometry, plain_attention
from glm53_exl3.plan.memory import ExpertLayer, PackWeights

#: Bytes of a key or value in a draft model's cache, which is not quantized.
_DRAFT_VALUE_BYTES = 2


def read_plan_sources(pack: Path, draft: Path | None = None) -> tuple[ModelGeometry, PackWeights]:
    """Geometry of the model and weights of pack and draft.

    Raises:
        PackError: the pack is not sound, or a file cannot be read.
        FormatError: the pack is not EXL3.
        PlanError: `config.json` lacks a size.
    """
    inventory = read_inventory(pack)
    inventory.require_sound()
    return plan_sources(inventory, draft)


def plan_sources(inventory: Inventory, draft: Path | None = None) -> tuple[ModelGeometry, PackWeights]:
    """The same of a sound pack whose headers were read before.

    Raises:
        PackError: a file of the draft cannot be read.
        PlanError: `config.json` lacks a size.
    """
    counted = census(inventory)
    draft_bytes, draft_token_bytes = (0, 0) if draft is None else _read_draft(draft)
    weights = PackWeights(
        resident_bytes=counted.resident_bytes,
        mtp_bytes=counted.mtp_bytes,
        draft_bytes=draft_bytes,
        draft_token_bytes=draft_token_bytes,
        has_trellis=bool(inventory.layers),
        experts=expert_layers(inventory),
    )
    return model_geometry(inventory.config), weights


def expert_layers(inventory: Inventory) -> tuple[ExpertLayer, ...]:
    """Layers of routed EXL3 experts, with what they take packed and decoded."""
    mtp = frozenset(inventory.shape.mtp_layers if inventory.shape else ())
    return tuple(_expert_layer(layer, is_mtp=layer.layer in mtp) for layer in inventory.layers.values())


def _expert_layer(layer: MoELayer, *, is_mtp: bool) -> ExpertLayer:
    num_weights = packed_bytes = 0
    for one in layer.projections.values():
        num_weights += one.in_features * one.out_features
        rates = one.expert_bits or (one.bits,) * layer.num_experts
        words = sum(math.prod(trellis_shape(one.in_features, one.out_features, bits)) for bits in rates)
        # int16 words of the trellis, fp16 suh and svh.
        packed_bytes += 2 * (words + layer.num_experts * (one.in_features + one.out_features))
    return ExpertLayer(
        num_experts=layer.num_experts,
        packed_bytes=packed_bytes,
        num_weights=layer.num_experts * num_weights,
        backends=compiled_backends(layer),
        is_mtp=is_mtp,
    )


def _read_draft(directory: Path) -> tuple[int, int]:
    """`(bytes of the weights, bytes of cache a token)` of a draft model with plain attention."""
    present, missing = files.shard_paths(directory, files.read_index(directory))
    if missing:
        raise files.missing_shard(missing[0])
    weight_bytes = sum(tensor.num_bytes for path in present for tensor in read_header(path))
    attention = plain_attention(files.read_json(directory / files.CONFIG_FILE))
    values = 2 * attention.num_layers * attention.num_kv_heads * attention.head_size
    return weight_bytes, values * _DRAFT_VALUE_BYTES
