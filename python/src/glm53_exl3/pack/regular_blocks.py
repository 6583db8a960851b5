"""Packs whose routed experts are as they should be, recognised as a whole.

A pack has 150,000 tensors in 43 blocks, and going through them one by one takes as long as reading their headers. But
a sound block has, for each projection and suffix, one tensor of each expert, all of one dtype and shape, so a dozen
comparisons settle it. A pack in which any block does not pass goes the long way through `modules` and `moe_layers`,
which name what is wrong; both ways make the same of a sound pack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

from glm53_exl3.errors import Glm53Error
from glm53_exl3.format import tensors as fmt
from glm53_exl3.format.codebooks import MARKER_VALUES
from glm53_exl3.format.names import PROJECTIONS, Projection, parse_expert
from glm53_exl3.pack.modules import LinearModule, assemble
from glm53_exl3.pack.safetensors_header import StoredTensor

_EXPERTS: Final = ".experts."
#: What the name of a block is followed by in the name of its first tensor.
_FIRST: Final = f".0.{PROJECTIONS[0]}.{fmt.TRELLIS}"
_dtype_and_shape = itemgetter(StoredTensor._fields.index("dtype"), StoredTensor._fields.index("shape"))


class RegularBlock(NamedTuple):
    """The routed experts of one layer.

    Attributes:
        layer: its index.
        experts: modules by projection, in the order of the experts, which begin at 0.
    """

    layer: int
    experts: dict[Projection, list[LinearModule]]


def split_blocks(
    tensors: Mapping[str, StoredTensor], num_experts: int | None
) -> tuple[dict[str, RegularBlock], Collection[StoredTensor]]:
    """Regular blocks by name, and the tensors that belong to none; no blocks and all tensors if one is irregular.

    Args:
        tensors: tensors of a pack by name.
        num_experts: experts that a layer should have; None to take what is there.
    """
    others = [tensor for name, tensor in tensors.items() if _EXPERTS not in name]
    regular: dict[str, RegularBlock] = {}
    num_tensors = len(others)
    for name in [name.removesuffix(_FIRST) for name in tensors if name.endswith(_FIRST)]:
        suffixes = _suffixes(name, tensors)
        block = _regular(name, tensors, suffixes, num_experts)
        if block is None:
            return {}, tensors.values()
        regular[name] = block
        num_tensors += len(PROJECTIONS) * len(suffixes) * len(block.experts["gate_proj"])
    # Otherwise there is a tensor of an expert besides, as a bias or a weight.
    return (regular, others) if num_tensors == len(tensors) else ({}, tensors.values())


def _suffixes(name: str, tensors: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """The suffixes that the first module of a block has."""
    marker = next((book for book in MARKER_VALUES if f"{name}.0.{PROJECTIONS[0]}.{book}" in tensors), None)
    return (fmt.TRELLIS, fmt.SUH, fmt.SVH, *([marker] if marker else []))


def _regular(
    name: str, tensors: Mapping[str, StoredTensor], suffixes: tuple[str, ...], num_experts: int | None
) -> RegularBlock | None:
    of_first = parse_expert(f"{name}.0.{PROJECTIONS[0]}")
    if of_first is None:
        return None
    if num_experts is None:
        num_experts = next(n for n in count() if f"{name}.{n}.{PROJECTIONS[0]}.{fmt.TRELLIS}" not in tensors)
    experts: dict[Projection, list[LinearModule]] = {}
    for projection in PROJECTIONS:
        modules = _regular_modules(name, tensors, projection, suffixes, num_experts)
        if modules is None:
            return None
        experts[projection] = modules
    return RegularBlock(of_first.layer, experts)


def _regular_modules(
    name: str,
    tensors: Mapping[str, StoredTensor],
    projection: Projection,
    suffixes: tuple[str, ...],
    num_experts: int,
) -> list[LinearModule] | None:
    """Modules of one projection, None unless all of them are there and alike."""
    names = [f"{name}.{expert}.{projection}" for expert in range(min(num_experts, len(tensors)))]
    first: dict[str, StoredTensor] = {}
    for suffix in suffixes:
        try:
            column = [tensors[f"{module}.{suffix}"] for module in names]
        except KeyError:
            return None
        if len(set(map(_dtype_and_shape, column))) != 1:
            return None
        first[suffix] = column[0]
    try:
        _, *fields = assemble(names[0], first)
    except Glm53Error:
        return None
    return [LinearModule._make((module, *fields)) for module in names]
