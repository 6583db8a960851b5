"""The routed experts that module names denote, for many names at once."""

from __future__ import annotations

from collections.abc import Iterable

from glm53_exl3.format.names import PROJECTIONS, ExpertName, Projection, parse_expert


def expert_places(modules: Iterable[str]) -> dict[str, ExpertName]:
    """Places of those modules that are a projection of a routed expert.

    As :func:`~glm53_exl3.format.names.parse_expert` finds them. A pack has 37,000 such names of 43 blocks and 288
    experts: each block and each number is parsed once.
    """
    layers: dict[str, int | None] = {}
    numbers: dict[str, int | None] = {}
    projections: dict[str, Projection] = {projection: projection for projection in PROJECTIONS}
    places: dict[str, ExpertName] = {}
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
            places[module] = ExpertName(block, layer, expert, projections[last])
    return places
