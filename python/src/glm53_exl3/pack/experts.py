"""The routed experts that module names denote, for many names at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from glm53_exl3.format.names import PROJECTIONS, Projection, parse_expert


class ExpertPlace(NamedTuple):
    """Where one projection of one routed expert belongs.

    Attributes:
        block: name of the module that holds all experts of the layer, ending in `.experts`.
        layer: index after `layers.`.
        expert: index of the expert in the checkpoint.
        projection: which of its three matrices.
    """

    block: str
    layer: int
    expert: int
    projection: Projection


def expert_places(modules: Iterable[str]) -> dict[str, ExpertPlace]:
    """Places of those modules that are a projection of a routed expert.

    As :func:`~glm53_exl3.format.names.parse_expert` finds them. A pack has 37,000 such names of 43 blocks and 288
    experts: each block and each number is parsed once.
    """
    layers: dict[str, int | None] = {}
    numbers: dict[str, int | None] = {}
    projections: dict[str, Projection] = {projection: projection for projection in PROJECTIONS}
    places: dict[str, ExpertPlace] = {}
    for module in modules:
        head, _, last = module.rpartition(".")
        if last not in projections:
            continue
        block, _, number = head.rpartition(".")
        if block not in layers:
            of_block = parse_expert(f"{block}.0.{last}")
            layers[block] = of_block.layer if of_block else None
        if number not in numbers:
            of_number = parse_expert(f"layers.0.experts.{number}.{last}")
            numbers[number] = of_number.expert if of_number else None
        layer, expert = layers[block], numbers[number]
        if layer is not None and expert is not None:
            places[module] = ExpertPlace(block, layer, expert, projections[last])
    return places
