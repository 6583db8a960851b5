"""Reads what a plan needs from a pack and a draft model: headers and `config.json`, no weights."""

from __future__ import annotations

from pathlib import Path

from glm53_exl3.pack import files
from glm53_exl3.pack.census import census
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.pack.safetensors_header import read_header
from glm53_exl3.plan.geometry import ModelGeometry, model_geometry, plain_attention
from glm53_exl3.plan.memory import PackWeights

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
    counted = census(inventory)
    draft_bytes, draft_token_bytes = (0, 0) if draft is None else _read_draft(draft)
    weights = PackWeights(
        resident_bytes=counted.resident_bytes,
        mtp_bytes=counted.mtp_bytes,
        draft_bytes=draft_bytes,
        draft_token_bytes=draft_token_bytes,
        has_trellis=bool(inventory.layers),
    )
    return model_geometry(files.read_json(pack / files.CONFIG_FILE)), weights


def _read_draft(directory: Path) -> tuple[int, int]:
    """`(bytes of the weights, bytes of cache a token)` of a draft model with plain attention."""
    present, missing = files.shard_paths(directory, files.read_index(directory))
    if missing:
        raise files.missing_shard(missing[0])
    weight_bytes = sum(tensor.num_bytes for path in present for tensor in read_header(path))
    attention = plain_attention(files.read_json(directory / files.CONFIG_FILE))
    values = 2 * attention.num_layers * attention.num_kv_heads * attention.head_size
    return weight_bytes, values * _DRAFT_VALUE_BYTES
