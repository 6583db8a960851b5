"""Which runtimes and kernels can serve a pack, from its headers and `config.json` alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from glm53_exl3.format.names import parse_expert
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.moe_layers import MoELayer
from glm53_exl3.pins import load_pins

#: Architectures whose routed experts this project was tested with; both pinned vLLMs have them.
_TESTED: Final = (
    "Glm5NextForConditionalGeneration",
    "Glm5NextForCausalLM",
    "Glm4MoeForCausalLM",
    "Qwen3MoeForCausalLM",
)
#: What FlashInfer's sparse MLA of compute capability 12.x takes, the one such attention a GB10 has.
_INDEX_TOPK: Final = 2048
#: exllamav3's fused MoE kernel has no instances of `3inst`.
_FUSED_CODEBOOKS: Final = frozenset({"mcg", "mul1"})
_UNTRIED: Final = "not yet run on a GB10"


@dataclass(frozen=True)
class Verdict:
    """Whether something can serve a pack.

    Attributes:
        name: `fork` or `upstream` of the pinned runtimes, or a kernel backend.
        kind: what it is.
        able: whether it can.
        reasons: why not, or what is to be known although it can.
    """

    name: str
    kind: Literal["runtime", "kernel"]
    able: bool
    reasons: tuple[str, ...]


def verdicts(inventory: Inventory) -> tuple[Verdict, ...]:
    """What can serve the pack. Whether it fits into memory is another question: `glm53-exl3 plan`."""
    reasons, notes = _of_any_runtime(inventory)
    runtimes = [Verdict(name, "runtime", not reasons, (*reasons, *notes)) for name in load_pins().runtimes]
    return (*runtimes, _reference(inventory), _native(inventory), _exllamav3(inventory))


def _of_any_runtime(inventory: Inventory) -> tuple[list[str], list[str]]:
    """Reasons against every runtime, and notes."""
    reasons: list[str] = []
    notes: list[str] = []
    if inventory.faults:
        reasons.append(f"the pack has {len(inventory.faults)} faults, which glm53-exl3 verify lists")
    outside = [name for name in inventory.modules if parse_expert(name) is None]
    if outside:
        reasons.append(f"{outside[0]} and {len(outside) - 1} more linears outside the routed experts are EXL3")
    architecture = inventory.shape.architecture if inventory.shape else ""
    if architecture not in _TESTED:
        notes.append(f"{architecture or 'the architecture'} was not tested with this project")
    text = inventory.config.get("text_config")
    topk = (text if isinstance(text, Mapping) else inventory.config).get("index_topk")
    if architecture.startswith("Glm5Next") and topk not in (None, _INDEX_TOPK):
        notes.append(f"index_topk is {topk}: the sparse attention of a GB10 takes {_INDEX_TOPK} only")
    return reasons, notes


def _reference(inventory: Inventory) -> Verdict:
    able = bool(inventory.layers)
    return Verdict(
        "reference", "kernel", able, ("exact and slow; on a GPU without CUDA graphs",) if able else ("no EXL3 experts",)
    )


def compiled_backends(layer: MoELayer) -> frozenset[str]:
    """Compiled backends that decode a layer: all its experts have one codebook, and there are kernels for it.

    exllamav3's kernel also wants one bit rate for all experts. The backends say the same of loaded tensors.
    """
    codebooks = {projection.codebook for projection in layer.projections.values()}
    if len(codebooks) > 1:
        return frozenset()
    has_fused = codebooks <= _FUSED_CODEBOOKS and not layer.is_mixed
    return frozenset({"native", "exllamav3"} if has_fused else {"native"})


def layers_outside(inventory: Inventory, backends: Collection[str]) -> list[MoELayer]:
    """Layers that none of these compiled backends can run, in their order."""
    outside = (each for each in inventory.layers.values() if compiled_backends(each).isdisjoint(backends))
    return sorted(outside, key=lambda one: one.layer)


def _native(inventory: Inventory) -> Verdict:
    others = layers_outside(inventory, ("native",))
    reasons: tuple[str, ...] = () if inventory.layers else ("no EXL3 experts",)
    if others:
        reasons = (f"layer {others[0].layer} has several codebooks",)
    return Verdict("native", "kernel", not reasons, reasons or (f"its kernels take every layer, on a GPU; {_UNTRIED}",))


def _exllamav3(inventory: Inventory) -> Verdict:
    others = layers_outside(inventory, ("exllamav3",))
    reasons: tuple[str, ...] = () if inventory.layers else ("no EXL3 experts",)
    if others:
        codebooks = " and ".join(sorted({projection.codebook for projection in others[0].projections.values()}))
        why = f"the codebook {codebooks}; its fused kernel has instances of mcg and mul1, one a layer"
        if set(codebooks.split(" and ")) <= _FUSED_CODEBOOKS and others[0].is_mixed:
            why = "experts of different bits; its fused kernel takes one rate for all"
        reasons = (f"layer {others[0].layer} has {why}",)
    return Verdict(
        "exllamav3", "kernel", not reasons, reasons or (f"its fused kernel takes every layer, on a GPU; {_UNTRIED}",)
    )
