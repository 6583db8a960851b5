"""The inventory of a pack: everything later steps need to know, without reading a weight.

The vLLM plugin, the demo and every pack tool read packs through :func:`read_inventory`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glm53_exl3.errors import Glm53Error, PackError
from glm53_exl3.format.names import PROJECTIONS, parse_expert, split_tensor
from glm53_exl3.format.quantization_config import KEY, QuantizationFields, parse_quantization_config
from glm53_exl3.pack import files
from glm53_exl3.pack.model_shape import ModelShape, model_shape
from glm53_exl3.pack.modules import LinearModule, exl3_modules
from glm53_exl3.pack.moe_layers import MoELayer, moe_layers
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
    """

    directory: Path
    shape: ModelShape | None
    stated: QuantizationFields
    tensors: Mapping[str, StoredTensor]
    modules: Mapping[str, LinearModule]
    layers: Mapping[str, MoELayer]
    plain_blocks: Mapping[str, int]
    faults: tuple[Glm53Error, ...] = field(default=())

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


def read_inventory(directory: Path) -> Inventory:
    """Read the headers of all shards of a pack.

    Faults of single tensors are collected in :attr:`Inventory.faults`; only what makes the folder unreadable as a
    pack is raised.

    Raises:
        PackError: no `config.json` or no shard, or a file that is not JSON.
        FormatError: the `quantization_config` is not one of EXL3.
    """
    config = files.read_json(directory / files.CONFIG_FILE)
    stated = parse_quantization_config(_quantization_config(directory, config))
    index = files.read_index(directory)
    present, missing = files.shard_paths(directory, index)
    faults: list[Glm53Error] = [files.missing_shard(path) for path in missing]
    tensors: dict[str, StoredTensor] = {}
    for path in present:
        try:
            header = read_header(path)
        except Glm53Error as fault:
            faults.append(fault)
            continue
        for tensor in header:
            if tensor.name in tensors:
                faults.append(_doubled(tensor, tensors[tensor.name]))
            tensors[tensor.name] = tensor
    if not faults:
        faults += _index_faults(tensors, index)
    modules, broken_modules = exl3_modules(tensors.values())
    shape = model_shape(config)
    layers, broken_layers = moe_layers(modules, shape, stated)
    plain, broken_plain = _plain_blocks(tensors, shape)
    faults += broken_modules + broken_layers + broken_plain + _ambiguous(layers)
    if not faults and not modules:
        faults.append(_no_trellis(directory))
    if not faults:
        faults += _absent_layers(layers, plain, shape, stated)
    return Inventory(directory, shape, stated, tensors, modules, layers, plain, tuple(faults))


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


def _doubled(tensor: StoredTensor, other: StoredTensor) -> PackError:
    return PackError(
        "tensor-doubled",
        f"{tensor.name} stands in two shards",
        expected="one of them",
        found=f"{other.shard.name} and {tensor.shard.name}",
        hint="remove the shard that the index does not name for it; mixed downloads of two revisions do this",
    )


def _index_faults(tensors: Mapping[str, StoredTensor], index: Mapping[str, str] | None) -> list[Glm53Error]:
    faults: list[Glm53Error] = []
    for name, shard in (index or {}).items():
        tensor = tensors.get(name)
        if tensor is None or tensor.shard.name != shard:
            where = "in no shard" if tensor is None else f"in {tensor.shard.name}"
            faults.append(
                PackError(
                    "index-contradiction",
                    f"{name} is not where {files.INDEX_FILE} says",
                    expected=f"in {shard}",
                    found=where,
                    hint=f"fetch {files.INDEX_FILE} and the shards of one commit",
                )
            )
    return faults


def _plain_blocks(
    tensors: Mapping[str, StoredTensor], shape: ModelShape | None
) -> tuple[dict[str, int], list[Glm53Error]]:
    """Blocks of ordinary experts with their layer, and those of which a weight is missing."""
    blocks: dict[str, int] = {}
    num_weights: dict[str, int] = {}
    for name in tensors:
        module, suffix = split_tensor(name)
        expert = parse_expert(module) if suffix == "weight" else None
        if expert is not None:
            blocks[expert.block] = expert.layer
            num_weights[expert.block] = num_weights.get(expert.block, 0) + 1
    expected = shape.num_experts * len(PROJECTIONS) if shape else None
    faults: list[Glm53Error] = [
        PackError(
            "expert-missing",
            f"{block} lacks weights of experts that are not EXL3",
            expected=f"{expected} weights",
            found=str(found),
            hint="fetch the pack again, all files of one commit",
        )
        for block, found in num_weights.items()
        if expected is not None and found != expected
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


def _absent_layers(
    layers: Mapping[str, MoELayer],
    plain: Mapping[str, int],
    shape: ModelShape | None,
    stated: QuantizationFields,
) -> list[Glm53Error]:
    if shape is None:
        return []
    present = {layer.layer for layer in layers.values()} | set(plain.values())
    faults: list[Glm53Error] = [
        PackError(
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
        PackError(
            "layer-bits",
            f"{KEY}.layer_bits names layer {layer}, which has no routed experts",
            expected=f"layers {min(known, default=0)} to {max(known, default=0)}",
            hint="fetch config.json of the same commit as the shards",
        )
        for layer in stated.layer_bits
        if layer not in known
    ]
    return faults
