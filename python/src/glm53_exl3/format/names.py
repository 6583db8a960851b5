"""Names of the tensors of routed experts in a checkpoint.

`<prefix>layers.<L>.<block>.experts.<E>.<projection>.<suffix>`, where `<prefix>` and `<block>` depend on the
architecture: `model.layers.3.mlp.experts.7.gate_proj.trellis` (Glm4Moe, Qwen3Moe),
`model.language_model.layers.3.mlp.experts.7.gate_proj.trellis` (Glm5Next).
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

Projection = Literal["gate_proj", "up_proj", "down_proj"]
PROJECTIONS: Final[tuple[Projection, ...]] = get_args(Projection)

# As a checkpoint writes an index: no sign, no leading zero, digits of ASCII, and few of them.
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,5})"
_EXPERT = re.compile(
    rf"^(?P<block>(?:.*\.)?layers\.(?P<layer>{_NUMBER})\.(?:.*\.)?experts)\.(?P<expert>{_NUMBER})\."
    r"(?P<projection>gate_proj|up_proj|down_proj)$"
)
_LAYER = re.compile(rf"(?:^|\.)layers\.({_NUMBER})(?=\.|$)")


class ExpertName(NamedTuple):
    """One projection of one routed expert.

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


def parse_expert(module: str) -> ExpertName | None:
    """The expert that a module name denotes, or None when it is no projection of a routed expert."""
    match = _EXPERT.match(module)
    if match is None:
        return None
    projection = match["projection"]
    assert projection in PROJECTIONS
    return ExpertName(match["block"], int(match["layer"]), int(match["expert"]), projection)


def layer_index(name: str) -> int | None:
    """Number after the last `layers.` of a module or tensor name, or None without one."""
    found = _LAYER.findall(name)
    return int(found[-1]) if found else None


def split_tensor(name: str) -> tuple[str, str]:
    """`(module, suffix)` of a tensor name: the text before and after its last dot."""
    module, _, suffix = name.rpartition(".")
    return module, suffix
