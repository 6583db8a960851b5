"""Bytes of a pack by what they are for, and how many of them a decoded token reads.

Pure: everything comes from an :class:`~glm53_exl3.pack.inventory.Inventory`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from glm53_exl3.format.names import layer_index
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.safetensors_header import StoredTensor

Kind = Literal[
    "routed_experts",
    "shared_experts",
    "dense_mlp",
    "router",
    "kda",
    "mla",
    "indexer",
    "attention",
    "norms",
    "embeddings",
    "lm_head",
    "mtp",
    "vision",
    "other",
]
#: Kinds in the order in which they are shown. `norms` holds the layer norms and the mHC mixers, `attention` that of
#: architectures which have neither KDA nor MLA, `mtp` all of the multi-token-prediction layers.
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_VISION: Final = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.")
_HEAD: Final = "lm_head"
_EMBEDDINGS: Final = "embed_tokens"
#: What a name has in it, the first that fits; of a tensor of a decoder layer and of any other.
_IN_LAYER: Final[tuple[tuple[str, Kind], ...]] = (
    (".experts.", "routed_experts"),
    (".shared_expert", "shared_experts"),
    (".mlp.gate.", "router"),
    ("e_score_correction_bias", "router"),
    (".indexer.", "indexer"),
    (".mlp.", "dense_mlp"),
    (".shared_head.head.", "lm_head"),
    (f".{_EMBEDDINGS}.", "embeddings"),
    ("norm", "norms"),
    (".hc_", "norms"),
)
_OUTSIDE: Final[tuple[tuple[str, Kind], ...]] = (
    (_HEAD, "lm_head"),
    (_EMBEDDINGS, "embeddings"),
    ("norm", "norms"),
    ("hc_", "norms"),
)
#: Tensors by which the attention of a layer is known.
_KDA_MARK: Final = "self_attn.A_log"
_MLA_MARK: Final = "self_attn.kv_b_proj."


@dataclass(frozen=True)
class Census:
    """What a pack weighs.

    Attributes:
        bytes_by_kind: stored bytes; every tensor counts once, so the values sum to `total_bytes`.
        active_bytes_by_kind: bytes that decoding one token reads at batch size 1, without speculation.
        total_bytes: data of all tensors, without the headers of the files.
        resident_bytes: weights in memory once loaded for decoding without speculation, the vision tower included;
            with MTP add `mtp_bytes`.
        mtp_bytes: the MTP layers.
        mtp_active_bytes: bytes that one MTP draft pass reads; it runs the output head once more.
        num_tensors: tensors of all kinds.
        num_weights: elements of all weights, of an EXL3 linear those of the matrix it stands for.
    """

    bytes_by_kind: Mapping[Kind, int]
    active_bytes_by_kind: Mapping[Kind, int]
    total_bytes: int
    resident_bytes: int
    mtp_bytes: int
    mtp_active_bytes: int
    num_tensors: int
    num_weights: int

    @property
    def active_bytes_per_token(self) -> int:
        """Bytes that decoding one token reads, the sum of `active_bytes_by_kind`."""
        return sum(self.active_bytes_by_kind.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits a weight over the whole pack, scales and markers included."""
        return 8 * self.total_bytes / self.num_weights if self.num_weights else 0.0


def census(inventory: Inventory) -> Census:
    """Count a pack.

    Of the routed experts a token reads `num_experts_per_tok` of each layer (all of them when `config.json` does not
    say how many), of the embeddings one row, and everything else once. The vision tower reads nothing while text is
    decoded. Where the output head is tied to the embeddings, they are read whole.
    """
    by_layer: dict[int | None, list[StoredTensor]] = defaultdict(list)
    for tensor in inventory.tensors.values():
        by_layer[_layer_of(tensor.name)].append(tensor)
    mtp_layers = frozenset(inventory.shape.mtp_layers if inventory.shape else ())
    stored: Counter[Kind] = Counter()
    mtp_parts: Counter[Kind] = Counter()
    for layer, tensors in by_layer.items():
        counted = _count(tensors) if layer is not None else _count_outside(tensors)
        if layer in mtp_layers:
            mtp_parts += counted
            stored["mtp"] += sum(counted.values())
        else:
            stored += counted
    active = _active(stored, inventory)
    mtp = stored["mtp"]
    total = sum(stored.values())
    return Census(
        bytes_by_kind={kind: stored[kind] for kind in KINDS if stored[kind]},
        active_bytes_by_kind=active,
        total_bytes=total,
        resident_bytes=total - mtp,
        mtp_bytes=mtp,
        mtp_active_bytes=_mtp_active(mtp_parts, active, inventory) if mtp else 0,
        num_tensors=len(inventory.tensors),
        num_weights=_num_weights(inventory),
    )


def _layer_of(name: str) -> int | None:
    """Decoder layer of a tensor; the vision tower counts its layers for itself."""
    return None if _is_vision(name) else layer_index(name)


def _is_vision(name: str) -> bool:
    return any(part in name for part in _VISION)


def _count(tensors: Iterable[StoredTensor]) -> Counter[Kind]:
    """Bytes of one decoder layer by kind."""
    held = list(tensors)
    names = [tensor.name for tensor in held]
    attention: Kind = "attention"
    if any(name.endswith(_KDA_MARK) for name in names):
        attention = "kda"
    elif any(_MLA_MARK in name for name in names):
        attention = "mla"
    counted: Counter[Kind] = Counter()
    for tensor in held:
        counted[_kind_in_layer(tensor.name, attention)] += tensor.num_bytes
    return counted


def _kind_in_layer(name: str, attention: Kind) -> Kind:
    if "_attn." in name and ".indexer." not in name:
        return attention
    return next((kind for part, kind in _IN_LAYER if part in name), "other")


def _count_outside(tensors: Iterable[StoredTensor]) -> Counter[Kind]:
    """Bytes of what belongs to no decoder layer, by kind."""
    counted: Counter[Kind] = Counter()
    for tensor in tensors:
        counted[_kind_outside(tensor.name)] += tensor.num_bytes
    return counted


def _kind_outside(name: str) -> Kind:
    if _is_vision(name):
        return "vision"
    return next((kind for part, kind in _OUTSIDE if part in name), "other")


def _active(stored: Mapping[Kind, int], inventory: Inventory) -> dict[Kind, int]:
    """Bytes of these kinds that decoding one token reads."""
    active: dict[Kind, int] = {}
    shape = inventory.shape
    for kind in KINDS:
        num_bytes = stored.get(kind, 0)
        if kind in ("vision", "mtp") or not num_bytes:
            continue
        if kind == "routed_experts" and shape is not None and 0 < shape.experts_per_token < shape.num_experts:
            num_bytes = num_bytes * shape.experts_per_token // shape.num_experts
        if kind == "embeddings" and not (shape is not None and shape.tied_embeddings):
            num_bytes = num_bytes // max(1, _num_embeddings(inventory))
        active[kind] = num_bytes
    return active


def _mtp_active(parts: Mapping[Kind, int], active: Mapping[Kind, int], inventory: Inventory) -> int:
    """Bytes of one draft pass. Embeddings and output head are those of the model, even where the pack has copies."""
    own = {kind: num_bytes for kind, num_bytes in parts.items() if kind not in ("embeddings", "lm_head")}
    head = active.get("lm_head", active.get("embeddings", 0))
    return sum(_active(own, inventory).values()) + head


def _num_embeddings(inventory: Inventory) -> int:
    """Rows of the embedding matrix, 0 when the pack holds none."""
    return max(
        (
            tensor.shape[0]
            for name, tensor in inventory.tensors.items()
            if _EMBEDDINGS in name and tensor.shape and layer_index(name) is None
        ),
        default=0,
    )


def _num_weights(inventory: Inventory) -> int:
    modules = inventory.modules
    plain = sum(
        math.prod(tensor.shape)
        for name, tensor in inventory.tensors.items()
        if name.rpartition(".")[0] not in modules or name.endswith(".bias")
    )
    return plain + sum(module.in_features * module.out_features for module in modules.values())
