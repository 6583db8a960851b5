"""The inventory of a pack: everything later steps need to know, without reading a weight.

The vLLM plugin, the demo and every pack tool read packs through :func:`read_inventory`.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glm53_exl3.errors import Glm53Error, PackError
from glm53_exl3.format.names import PROJECTIONS, ExpertName
from glm53_exl3.format.quantization_config import KEY, QuantizationFields, parse_quantization_config
from glm53_exl3.pack import files
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.experts import expert_places
from glm53_exl3.pack.model_shape import ModelShape, model_shape
from glm53_exl3.pack.modules import GroupedTensors, LinearModule, exl3_modules, group_tensors
from glm53_exl3.pack.moe_layers import MoELayer, moe_layers
from glm53_exl3.pack.regular_blocks import split_blocks
from glm53_exl3.pack.safetensors_header import StoredTensor, read_header


@dataclass(frozen=True)
class Inventory:
    """What a pack holds.

    Attributes:
        directory: folder of the pack.
        shape: sizes from `config.json`, None when it describes no mixture of experts.
        stated: the `quantization_config`.
        tensors: every tensor by name.
        modules: every sound EXL3 linear by module name.
        layers: every sound layer of routed EXL3 experts by block name.
        plain_blocks: blocks of routed experts that are stored as ordinary weights, with their layer index.
        faults: what is wrong, worst first; empty for a sound pack.
        config: `config.json`.
        index: the index, None when the pack has none.
        shards: the shards whose headers were read.
        unlisted: tensors that the index does not name although it names their shard. vLLM loads them nevertheless.
    """

    directory: Path
    shape: ModelShape | None
    stated: QuantizationFields
    tensors: Mapping[str, StoredTensor]
    modules: Mapping[str, LinearModule]
    layers: Mapping[str, MoELayer]
    plain_blocks: Mapping[str, int]
    faults: tuple[Glm53Error, ...] = field(default=())
    config: Mapping[str, Any] = field(default_factory=dict)
    index: files.PackIndex | None = None
    shards: tuple[Path, ...] = ()
    unlisted: tuple[str, ...] = ()

    def require_sound(self) -> None:
        """Raise the worst fault, if there is one.

        Raises:
            PackError: the first fault; its text says how many there are in all.
        """
        if not self.faults:
            return
        worst = self.faults[0]
        more = len(self.faults) - 1
        what = worst.what + (f" (and {more} more faults)" if more else "")
        raise PackError(worst.id, what, expected=worst.expected, found=worst.found, hint=worst.hint)


@dataclass
class _Stored:
    """What the headers of all shards hold."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    shards: list[Path] = field(default_factory=list)
    faults: list[Glm53Error] = field(default_factory=list)
    #: Tensors that are in the shard which the index names, and those that are not.
    num_placed: int = 0
    elsewhere: list[StoredTensor] = field(default_factory=list)


def read_inventory(directory: Path) -> Inventory:
    """Read the headers of all shards of a pack.

    Faults of single tensors are collected in :attr:`Inventory.faults`; only what makes the folder unreadable as a
    pack is raised. What follows from another fault, as the tensors of a shard that is not there, is not a fault again.

    Raises:
        PackError: no `config.json` or no shard, or a file that is not JSON.
        FormatError: the `quantization_config` is not one of EXL3.
    """
    with without_collection():
        return _read_inventory(directory)


def _read_inventory(directory: Path) -> Inventory:
    config = files.read_json(directory / files.CONFIG_FILE)
    stated = parse_quantization_config(_quantization_config(directory, config))
    shape = model_shape(config)
    index = files.read_pack_index(directory)
    weight_map = None if index is None else index.weight_map
    paths, missing = files.shard_paths(directory, weight_map)
    stored = _read_headers(paths, weight_map or {})
    faults: list[Glm53Error] = [files.missing_shard(path) for path in missing] + stored.faults
    unplaced: Collection[str] = ()
    unlisted: list[str] = []
    if weight_map is not None:
        if stored.num_placed != len(weight_map):
            unplaced = weight_map.keys() - stored.tensors.keys()
            faults += _index_faults(stored, weight_map)
        unlisted = [tensor.name for tensor in stored.elsewhere if tensor.name not in weight_map]
    # Modules of which the faults above tell already that they are incomplete.
    lost = frozenset(name.rpartition(".")[0] for name in unplaced)
    num_experts = shape.num_experts if shape else None
    regular, others = ({}, stored.tensors.values()) if lost else split_blocks(stored.tensors, num_experts)
    grouped = group_tensors(others)
    modules, broken_modules = exl3_modules(grouped, lost)
    places = expert_places([*grouped.exl3, *grouped.beside, *lost])
    broken = lost | (grouped.exl3.keys() - modules.keys())
    layers, broken_layers = moe_layers(modules, shape, stated, regular, places, broken)
    for block in regular.values():
        modules.update((module.name, module) for experts in block.experts.values() for module in experts)
    present_layers = {block.layer for block in regular.values()} | {place.layer for place in places.values()}
    plain, broken_plain = _plain_blocks(grouped, shape, places, lost)
    faults += broken_modules + broken_layers + broken_plain + _ambiguous(layers)
    if not faults and not modules:
        faults.append(_no_trellis(directory))
    faults += _absent_layers(present_layers, shape, stated)
    return Inventory(
        directory, shape, stated, stored.tensors, modules, layers, plain, tuple(faults),
        config, index, tuple(stored.shards), tuple(unlisted),
    )  # fmt: skip


@contextmanager
def without_collection() -> Iterator[None]:
    """Suspend the cyclic garbage collector, which would look at half a million living objects again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _read_headers(paths: list[Path], weight_map: Mapping[str, str]) -> _Stored:
    stored = _Stored()
    for path in paths:
        try:
            header = read_header(path)
        except Glm53Error as fault:
            stored.faults.append(fault)
            continue
        stored.shards.append(path)
        names = [tensor.name for tensor in header]
        if not stored.tensors.keys().isdisjoint(names):
            pairs = [(tensor, stored.tensors[tensor.name]) for tensor in header if tensor.name in stored.tensors]
            stored.faults += [_doubled(tensor, other) for tensor, other in pairs]
        stored.tensors.update(zip(names, header, strict=True))
        shard = path.name
        num_placed = list(map(weight_map.get, names)).count(shard)
        stored.num_placed += num_placed
        if num_placed != len(header):
            stored.elsewhere += [tensor for tensor in header if weight_map.get(tensor.name) != shard]
    return stored


def _quantization_config(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    for holder in (config, text if isinstance(text, Mapping) else {}):
        found = holder.get(KEY)
        if isinstance(found, Mapping):
            return found
    beside = directory / files.QUANTIZATION_FILE
    if beside.exists():
        return files.read_json(beside)
    raise PackError(
        "not-exl3",
        f"{directory} has no {KEY}",
        expected=f'"{KEY}": {{"quant_method": "exl3", ...}} in {files.CONFIG_FILE}',
        hint="quantize the checkpoint first: glm53-exl3 quantize SRC DST --bits 2",
    )


def _no_trellis(directory: Path) -> PackError:
    return PackError(
        "not-exl3",
        f"{directory} says that it is EXL3 and holds no trellis tensor",
        hint="quantize the checkpoint first: glm53-exl3 quantize SRC DST --bits 2",
    )


def _doubled(tensor: StoredTensor, other: StoredTensor) -> DamageError:
    return DamageError(
        "tensor-doubled",
        f"{tensor.name} stands in two shards",
        expected="one of them",
        found=f"{other.shard.name} and {tensor.shard.name}",
        hint="remove the shard that the index does not name for it; mixed downloads of two revisions do this",
        files=[other.shard.name, tensor.shard.name],
    )


def _index_faults(stored: _Stored, weight_map: Mapping[str, str]) -> list[Glm53Error]:
    """Tensors that are not where the index says, but for those whose shard could not be read."""
    read = {path.name for path in stored.shards}
    return [
        DamageError(
            "index-contradiction",
            f"{name} is not where {files.INDEX_FILE} says",
            expected=f"in {shard}",
            found=f"in {stored.tensors[name].shard.name}" if name in stored.tensors else "in no shard",
            hint=f"fetch {files.INDEX_FILE} and the shards of one commit",
            files=[files.INDEX_FILE, shard],
        )
        for name, shard in weight_map.items()
        if shard in read and (name not in stored.tensors or stored.tensors[name].shard.name != shard)
    ]


def _plain_blocks(
    grouped: GroupedTensors, shape: ModelShape | None, places: Mapping[str, ExpertName], lost: Collection[str]
) -> tuple[dict[str, int], list[Glm53Error]]:
    """Blocks of ordinary experts with their layer, and those of which a weight is missing."""
    blocks: dict[str, int] = {}
    num_weights: dict[str, int] = {}
    weights = {name for name, parts in grouped.beside.items() if "weight" in parts and name in places}
    for name in weights:
        blocks[places[name].block] = places[name].layer
    for name in weights.union(name for name in lost if name in places and name not in grouped.exl3):
        num_weights[places[name].block] = num_weights.get(places[name].block, 0) + 1
    expected = shape.num_experts * len(PROJECTIONS) if shape else None
    faults: list[Glm53Error] = [
        DamageError(
            "expert-missing",
            f"{block} lacks weights of experts that are not EXL3",
            expected=f"{expected} weights",
            found=str(num_weights[block]),
            hint="fetch the pack again, all files of one commit",
        )
        for block in sorted(blocks)
        if expected is not None and num_weights[block] != expected
    ]
    return blocks, faults


def _ambiguous(layers: Mapping[str, MoELayer]) -> list[Glm53Error]:
    by_index: dict[int, MoELayer] = {}
    faults: list[Glm53Error] = []
    for layer in layers.values():
        other = by_index.setdefault(layer.layer, layer)
        if other is not layer:
            faults.append(
                PackError(
                    "layer-ambiguous",
                    f"{other.block} and {layer.block} have the same layer index",
                    hint="this architecture is not supported; open an issue that names the model",
                )
            )
    return faults


def _absent_layers(present: Collection[int], shape: ModelShape | None, stated: QuantizationFields) -> list[Glm53Error]:
    if shape is None:
        return []
    faults: list[Glm53Error] = [
        DamageError(
            "layer-missing",
            f"layer {layer} has no routed experts in the pack",
            expected=f"{shape.num_experts} experts in each of {len(shape.moe_layers)} layers",
            hint="fetch the pack again, all files of one commit",
        )
        for layer in shape.moe_layers
        if layer not in present
    ]
    known = {*shape.moe_layers, *shape.mtp_layers}
    faults += [
        DamageError(
            "layer-bits",
            f"{KEY}.layer_bits names layer {layer}, which has no routed experts",
            expected=f"layers {min(known, default=0)} to {max(known, default=0)}",
            hint="fetch config.json of the same commit as the shards",
            files=[files.CONFIG_FILE],
        )
        for layer in stated.layer_bits
        if layer not in known
    ]
    return faults
