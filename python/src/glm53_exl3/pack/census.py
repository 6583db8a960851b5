"""Bytes of a pack by what they are for, and how many of them a decoded token reads.

Pure: everything comes from an :class:`~glm53_exl3.pack.inventory.Inventory`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from glm53_exl3.format.names import layer_index
from glm53_exl3.format.tensors import BIAS
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

_EXPERTS: Final = ".experts."
_VISION: Final = ("visual.", "vision_tower.", "vision_model.", "multi_modal_projector.")
_HEAD: Final = "lm_head"
_EMBEDDINGS: Final = "embed_tokens"
#: What a name has in it, the first that fits; of a tensor of a decoder layer and of any other.
_IN_LAYER: Final[tuple[tuple[str, Kind], ...]] = (
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
        exl3_bytes: tensors of EXL3 linears, scales and markers included.
        exl3_weights: elements of the matrices they stand for.
    """

    bytes_by_kind: Mapping[Kind, int]
    active_bytes_by_kind: Mapping[Kind, int]
    total_bytes: int
    resident_bytes: int
    mtp_bytes: int
    mtp_active_bytes: int
    num_tensors: int
    num_weights: int
    exl3_bytes: int
    exl3_weights: int

    @property
    def active_bytes_per_token(self) -> int:
        """Bytes that decoding one token reads, the sum of `active_bytes_by_kind`."""
        return sum(self.active_bytes_by_kind.values())

    @property
    def bits_per_weight(self) -> float:
        """Stored bits a weight over the whole pack, scales and markers included."""
        return 8 * self.total_bytes / self.num_weights if self.num_weights else 0.0

    @property
    def exl3_bits_per_weight(self) -> float:
        """Stored bits a weight of the EXL3 linears, scales and markers included; 0 when there are none."""
        return 8 * self.exl3_bytes / self.exl3_weights if self.exl3_weights else 0.0


def census(inventory: Inventory) -> Census:
    """Count a pack.

    Of the routed experts a token reads `num_experts_per_tok` of each layer (all of them when `config.json` does not
    say how many), of the embeddings one row, and everything else once. The vision tower reads nothing while text is
    decoded. Where the output head is tied to the embeddings, they are read whole.
    """
    mtp_layers = frozenset(inventory.shape.mtp_layers if inventory.shape else ())
    stored: Counter[Kind] = Counter()
    mtp_parts: Counter[Kind] = Counter()
    for layer, counted in _bytes_by_layer(inventory).items():
        if layer in mtp_layers:
            mtp_parts += counted
            stored["mtp"] += sum(counted.values())
        else:
            stored += counted
    active = _active(stored, inventory)
    mtp = stored["mtp"]
    total = sum(stored.values())
    exl3_bytes, plain_weights = _exl3_bytes_and_plain_weights(inventory)
    exl3_weights = sum(module.in_features * module.out_features for module in inventory.modules.values())
    return Census(
        bytes_by_kind={kind: stored[kind] for kind in KINDS if stored[kind]},
        active_bytes_by_kind=active,
        total_bytes=total,
        resident_bytes=total - mtp,
        mtp_bytes=mtp,
        mtp_active_bytes=_mtp_active(mtp_parts, active, inventory) if mtp else 0,
        num_tensors=len(inventory.tensors),
        num_weights=plain_weights + exl3_weights,
        exl3_bytes=exl3_bytes,
        exl3_weights=exl3_weights,
    )


def _bytes_by_layer(inventory: Inventory) -> dict[int | None, Counter[Kind]]:
    """Bytes by kind of each layer, and under None of what belongs to no layer."""
    by_layer: dict[int | None, list[StoredTensor]] = defaultdict(list)
    expert_bytes: Counter[str] = Counter()
    for name, tensor in inventory.tensors.items():
        owner, found, _ = name.partition(_EXPERTS)
        if found:
            expert_bytes[owner] += tensor.num_bytes
        else:
            by_layer[_layer_of(name)].append(tensor)
    parts = {
        layer: _count(tensors) if layer is not None else _count_outside(tensors) for layer, tensors in by_layer.items()
    }
    for owner, num_bytes in expert_bytes.items():
        parts.setdefault(layer_index(owner), Counter())["routed_experts"] += num_bytes
    return parts


def _exl3_bytes_and_plain_weights(inventory: Inventory) -> tuple[int, int]:
    """Bytes of the tensors of EXL3 linears, and elements of all other tensors."""
    exl3_bytes = plain_weights = 0
    for name, tensor in inventory.tensors.items():
        module, _, suffix = name.rpartition(".")
        if module in inventory.modules and suffix != BIAS:
            exl3_bytes += tensor.num_bytes
        else:
            plain_weights += math.prod(tensor.shape)
    return exl3_bytes, plain_weights


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


class LayerRange(NamedTuple):
    """Neighbouring layers whose routed experts are stored alike.

    Attributes:
        first, last: layer indices.
        bits: bits of gate, up and down, several where experts differ; empty where the experts are ordinary weights.
        codebook: codebook of all three, empty where the experts are ordinary weights.
        is_mtp: whether they are multi-token-prediction layers.
    """

    first: int
    last: int
    bits: tuple[int | tuple[int, ...], ...]
    codebook: str
    is_mtp: bool


def layer_ranges(inventory: Inventory) -> list[LayerRange]:
    """The layers of routed experts of a pack in their order, neighbours that are alike in one."""
    mtp = frozenset(inventory.shape.mtp_layers if inventory.shape else ())
    single = [
        LayerRange(
            layer.layer,
            layer.layer,
            tuple(rates if len(rates) > 1 else rates[0] for rates in layer.rates),
            layer.projections["gate_proj"].codebook,
            layer.layer in mtp,
        )
        for layer in inventory.layers.values()
    ]
    single += [LayerRange(layer, layer, (), "", layer in mtp) for layer in set(inventory.plain_blocks.values())]
    ranges: list[LayerRange] = []
    for one in sorted(single, key=lambda each: each.first):
        before = ranges[-1] if ranges else None
        if before is not None and before.last + 1 == one.first and before[2:] == one[2:]:
            ranges[-1] = before._replace(last=one.last)
        else:
            ranges.append(one)
    return ranges
