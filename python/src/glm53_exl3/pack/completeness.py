"""Whether the tensors outside the routed experts are all there, without a list of what a model has.

vLLM does not check that every parameter of a quantized model was loaded, and an index that was made from what is
there names no tensor that is not. So layers are compared with each other:

* The layers of a stack (`layers.N.`, `blocks.N.`) are sorted into kinds by the names of their tensors, attention,
  feed-forward and the rest each for itself. A layer joins the kind with which it shares most names, if it has at
  least half of that kind's names or no name that the kind has not; else it begins a kind.
* What most layers of a kind have, each must have, in the shape in which most have it; of two layers, what one has.
* A layer of the decoder without any tensor of attention or feed-forward lacks it.
* Some tensors must be there whatever the siblings say: a router for each layer of experts, its correction bias where
  the model always has one, projection and norms of an MTP layer, embeddings, the last norm, and an output head unless
  it is tied to the embeddings.

A tensor which the index names and no shard holds is a fault of the inventory, and not reported again. A pack of
routed experts alone has nothing to compare.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.model_shape import ModelShape
from glm53_exl3.pack.safetensors_header import StoredTensor

_STACKED = re.compile(r"(?P<stack>(?:.*?\.)?(?:layers|blocks))\.(?P<number>0|[1-9][0-9]{0,5})\.(?P<rest>.+)")
_EXPERTS: Final = ".experts."
_INDEXER: Final = ".indexer."
_MTP_PARTS: Final = ("eh_proj.weight", "enorm.weight", "hnorm.weight")
_ROUTERS: Final = ("gate.weight", "router.weight")
_CORRECTION: Final = "gate.e_score_correction_bias"
#: Architectures whose routers always have a correction bias.
_CORRECTED: Final = ("Glm4Moe", "Glm5Next", "GlmMoeDsa", "DeepseekV3")
_REFETCH: Final = "fetch the pack again, all files of one commit"

#: Names of tensors by layer, without the name of the layer.
Layers = dict[int, set[str]]


def model_faults(inventory: Inventory) -> list[Glm53Error] | None:
    """Tensors outside the routed experts that are missing or have another shape than those of their siblings.

    None when the pack has no such tensors in its decoder layers, so that nothing can be compared.
    """
    tensors = inventory.tensors
    listed = inventory.index.weight_map if inventory.index else {}
    names = {name for name in tensors if _EXPERTS not in name} | {name for name in listed if _EXPERTS not in name}
    stacks = _stacks(names)
    decoder = _decoder(inventory)
    if decoder not in stacks:
        return None
    faults: list[Glm53Error] = []
    for stack, layers in stacks.items():
        for kind in _kinds(layers, inventory, is_decoder=stack == decoder):
            faults += _compare(stack, kind, tensors)
    if inventory.shape is not None:
        faults += _absent_parts(decoder, stacks[decoder], inventory.shape)
        faults += _required_in_layers(decoder, stacks[decoder], inventory)
        faults += _required_outside(names, inventory)
    return faults


def _stacks(names: Iterable[str]) -> dict[str, Layers]:
    """Names by stack and layer, without the first part up to the number."""
    stacks: dict[str, Layers] = {}
    for name in names:
        match = _STACKED.fullmatch(name)
        if match:
            layers = stacks.setdefault(match["stack"], {})
            layers.setdefault(int(match["number"]), set()).add(match["rest"])
    return stacks


def _decoder(inventory: Inventory) -> str:
    """The stack that has the routed experts; `layers` when there is none."""
    for block in (*inventory.layers, *inventory.plain_blocks, *inventory.modules):
        match = _STACKED.fullmatch(block)
        if match and f".{match['rest']}.".find(_EXPERTS) >= 0:
            return match["stack"]
    return "layers"


def _part(rest: str) -> str:
    """What a tensor of a layer belongs to."""
    first = rest.partition(".")[0]
    if "attn" in first and "." in rest:
        return "attention"
    return "feed_forward" if "mlp" in first or "moe" in first or "feed_forward" in first else "rest"


def _kinds(layers: Layers, inventory: Inventory, *, is_decoder: bool) -> Iterator[Layers]:
    """Layers of one kind each, with the names by which they are to be compared."""
    shape = inventory.shape if is_decoder else None
    moe = {*shape.moe_layers, *shape.mtp_layers} if shape else set()
    mtp = set(shape.mtp_layers) if shape else set()
    parts: dict[tuple[str, bool], Layers] = {}
    for layer, names in layers.items():
        for name in names:
            part = _part(name)
            if _INDEXER in name and _indexers_differ(inventory.config):
                part = "indexer"
            apart = layer in (moe if part == "feed_forward" else mtp if part == "rest" else ())
            parts.setdefault((part, apart), {}).setdefault(layer, set()).add(name)
    for members in parts.values():
        yield from _sorted_into_kinds(members)


def _indexers_differ(config: Mapping[str, Any]) -> bool:
    """Whether some layers use the choice of another layer's indexer and have none of their own."""
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    return any(text.get(key) not in (None, 1) for key in ("index_topk_freq", "index_topk_pattern", "indexer_types"))


def _sorted_into_kinds(layers: Layers) -> list[Layers]:
    """Layers that have most names in common, by the names that most layers have first."""
    frequent = Counter(frozenset(names) for names in layers.values())
    order = sorted(layers, key=lambda layer: (-frequent[frozenset(layers[layer])], -len(layers[layer]), layer))
    kinds: list[tuple[set[str], Layers]] = []
    for layer in order:
        names = layers[layer]
        nearest = max(kinds, key=lambda kind: len(kind[0] & names), default=None)
        if nearest and (2 * len(nearest[0] & names) >= len(nearest[0]) or names <= nearest[0]):
            nearest[1][layer] = names
        else:
            kinds.append((names, {layer: names}))
    return [members for _, members in kinds]


def _compare(stack: str, kind: Layers, tensors: Mapping[str, StoredTensor]) -> Iterator[Glm53Error]:
    """What layers of one kind lack or have in another shape than most of them."""
    votes = Counter(name for names in kind.values() for name in names)
    for name, num_layers in sorted(votes.items()):
        if 2 * num_layers > len(kind) or len(kind) == 2:
            model = next(layer for layer in sorted(kind) if name in kind[layer])
            for layer in sorted(kind):
                if name not in kind[layer]:
                    yield _missing(f"{stack}.{layer}.{name}", f"one as in layer {model}")
        shapes = {
            layer: tensors[full].shape for layer in sorted(kind) if (full := f"{stack}.{layer}.{name}") in tensors
        }
        if len(set(shapes.values())) > 1:
            usual = Counter(shapes.values()).most_common(1)[0][0]
            for layer, shape in shapes.items():
                if shape != usual:
                    yield _wrong_shape(tensors[f"{stack}.{layer}.{name}"], usual)


def _absent_parts(decoder: str, layers: Layers, shape: ModelShape) -> Iterator[Glm53Error]:
    """Layers without attention or without a feed-forward part, when the others have them."""
    for part, example in (("attention", "self_attn"), ("feed_forward", "mlp")):
        having = {layer for layer, names in layers.items() if any(_part(name) == part for name in names)}
        numbers = range(shape.num_layers)
        if 2 * len(having.intersection(numbers)) > len(numbers):
            for layer in numbers:
                if layer not in having:
                    yield _missing(f"{decoder}.{layer}.{example}", f"tensors of {part.replace('_', '-')} in each layer")


def _required_in_layers(decoder: str, layers: Layers, inventory: Inventory) -> Iterator[Glm53Error]:
    shape = inventory.shape
    assert shape is not None
    text = inventory.config.get("text_config")
    text = text if isinstance(text, Mapping) else inventory.config
    corrected = shape.architecture.startswith(_CORRECTED) or text.get("topk_method") == "noaux_tc"
    blocks = {layer.layer: block for block, layer in inventory.layers.items()}
    blocks |= {layer: block for block, layer in inventory.plain_blocks.items()}
    for layer, block in sorted(blocks.items()):
        owner = block.removeprefix(f"{decoder}.{layer}.").removesuffix(_EXPERTS.rstrip("."))
        names = layers.get(layer, set())
        if not any(f"{owner}.{router}" in names for router in _ROUTERS):
            yield _missing(f"{decoder}.{layer}.{owner}.{_ROUTERS[0]}", "a router for each layer of experts")
        if corrected and f"{owner}.{_CORRECTION}" not in names:
            yield _missing(f"{decoder}.{layer}.{owner}.{_CORRECTION}", "a correction bias for each router")
    for layer in shape.mtp_layers:
        if layer not in layers and layer not in blocks:
            yield DamageError(
                "mtp-absent",
                f"config.json counts MTP layer {layer}, which is not in the pack",
                expected="an MTP layer, for speculation by mtp; without speculation nothing is amiss",
                hint="serve without mtp, or use a pack that has the layer",
            )
            continue
        for name in _MTP_PARTS:
            if name not in layers.get(layer, ()):
                yield _missing(f"{decoder}.{layer}.{name}", "projection and norms of the MTP layer")
        if layer not in blocks and not _has_experts(inventory, decoder, layer):
            yield _missing(f"{decoder}.{layer}.mlp{_EXPERTS}0", "routed experts of the MTP layer")


def _has_experts(inventory: Inventory, decoder: str, layer: int) -> bool:
    """Whether the layer has any expert, sound or not."""
    prefix = f"{decoder}.{layer}."
    return any(name.startswith(prefix) and _EXPERTS in name for name in inventory.tensors)


def _required_outside(names: set[str], inventory: Inventory) -> Iterator[Glm53Error]:
    shape = inventory.shape
    assert shape is not None
    outside = [name for name in names if not _STACKED.fullmatch(name)]
    wanted = {
        "embed_tokens.weight": "the embeddings",
        "norm.weight": "the norm after the last layer",
        "lm_head.weight": "an output head, as config.json ties none to the embeddings",
    }
    if shape.tied_embeddings:
        del wanted["lm_head.weight"]
    for ending, what in wanted.items():
        found = [name for name in outside if f".{name}".endswith(f".{ending}")]
        if not found and not any(f".{name}".rpartition(".")[0].endswith(f".{ending[:-7]}") for name in outside):
            yield _missing(ending, what)
        for name in found:
            tensor = inventory.tensors.get(name)
            if tensor is not None:
                rows = tensor.shape[:-1] if ending == "norm.weight" or not shape.vocabulary else (shape.vocabulary,)
                if tensor.shape != (*rows, shape.hidden_size):
                    yield _wrong_shape(tensor, (*rows, shape.hidden_size))


def _missing(name: str, expected: str) -> DamageError:
    return DamageError("tensor-missing", f"{name} is missing", expected=expected, hint=_REFETCH)


def _wrong_shape(tensor: StoredTensor, expected: tuple[int, ...]) -> DamageError:
    return DamageError(
        "tensor-shape",
        f"{tensor.name} has another shape than the model or the same tensor of other layers",
        expected=str(list(expected)),
        found=str(list(tensor.shape)),
        hint=_REFETCH,
        tensors=[tensor.name],
    )
