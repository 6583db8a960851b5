"""Routed-expert layers of a pack: K and codebook of each, and whether every expert is there.

K may differ between the experts of a projection, where `quantization_config` states none for the layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from glm53_exl3.errors import Glm53Error
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.format.names import PROJECTIONS, ExpertName, Projection
from glm53_exl3.format.quantization_config import BITS, CODEBOOK, KEY, LAYER_BITS, QuantizationFields
from glm53_exl3.format.tensors import TRELLIS
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.files import CONFIG_FILE
from glm53_exl3.pack.model_shape import ModelShape
from glm53_exl3.pack.modules import LinearModule
from glm53_exl3.pack.regular_blocks import RegularBlock

_REFETCH = "fetch the pack again, all files of one commit"


@dataclass(frozen=True)
class ProjectionSpec:
    """What all experts of a layer share in one projection.

    Attributes:
        in_features, out_features: of one expert's weight `[in, out]`.
        bits: bits a weight, of most experts where they differ.
        codebook: codebook of the trellis.
        expert_bits: of each expert where they differ, else empty.
    """

    in_features: int
    out_features: int
    bits: int
    codebook: Codebook
    expert_bits: tuple[int, ...] = ()

    def bits_of(self, expert: int) -> int:
        """Bits a weight of one expert."""
        return self.expert_bits[expert] if self.expert_bits else self.bits

    @property
    def rates(self) -> tuple[int, ...]:
        """The different bits a weight, rising."""
        return tuple(sorted(set(self.expert_bits))) or (self.bits,)


@dataclass(frozen=True)
class MoELayer:
    """One layer whose routed experts are EXL3.

    Attributes:
        block: module that holds the experts in the checkpoint, ending in `.experts`.
        layer: its layer index.
        num_experts: experts in the checkpoint.
        projections: specification by projection name.
    """

    block: str
    layer: int
    num_experts: int
    projections: Mapping[Projection, ProjectionSpec]

    def tensor_name(self, expert: int, projection: Projection, suffix: str) -> str:
        """Name of one tensor in the checkpoint."""
        return f"{self.block}.{expert}.{projection}.{suffix}"

    @property
    def bits(self) -> tuple[int, ...]:
        """Bits of gate, up and down, of most experts where they differ."""
        return tuple(self.projections[projection].bits for projection in PROJECTIONS)

    @property
    def rates(self) -> tuple[tuple[int, ...], ...]:
        """Bits of gate, up and down, several where experts differ."""
        return tuple(self.projections[projection].rates for projection in PROJECTIONS)

    @property
    def is_mixed(self) -> bool:
        """Whether experts of a projection differ in bits."""
        return any(spec.expert_bits for spec in self.projections.values())


@dataclass
class _Block:
    layer: int
    by_projection: dict[Projection, dict[int, LinearModule]] = field(
        default_factory=lambda: {projection: {} for projection in PROJECTIONS}
    )
    #: Experts by projection that are known to be missing already.
    lost: dict[Projection, set[int]] = field(default_factory=lambda: {projection: set() for projection in PROJECTIONS})


def moe_layers(
    modules: Mapping[str, LinearModule],
    shape: ModelShape | None,
    stated: QuantizationFields,
    regular: Mapping[str, RegularBlock],
    places: Mapping[str, ExpertName],
    lost: Collection[str],
) -> tuple[dict[str, MoELayer], list[Glm53Error]]:
    """Layers of routed EXL3 experts by block name, and every fault found in them.

    Args:
        modules: EXL3 linears of the pack outside the regular blocks.
        shape: what `config.json` says; None to check the pack against itself alone.
        stated: the `quantization_config`, compared with the trellises.
        regular: blocks that are known to be complete and even.
        places: which expert each of the modules is, by name.
        lost: modules that are known to be missing already; a layer without them is left out, without a fault.
    """
    layers: dict[str, MoELayer] = {}
    faults: list[Glm53Error] = []
    for name, whole in regular.items():
        specs = {projection: _spec(experts[0]) for projection, experts in whole.experts.items()}
        num_experts = len(whole.experts["gate_proj"])
        layers[name] = MoELayer(name, whole.layer, num_experts, specs)
    for name, block in _blocks(modules, places, lost).items():
        num_experts = shape.num_experts if shape else 1 + max(max(m, default=-1) for m in block.by_projection.values())
        found = [*_missing(name, block, num_experts), *_biases(block)]
        specs = {}
        for projection, present in block.by_projection.items():
            if present:
                specs[projection], uneven = _common(present, num_experts)
                found += uneven
        if len(specs) == len(PROJECTIONS):
            layer = MoELayer(name, block.layer, num_experts, specs)
            if found or any(block.lost.values()):
                faults += [*found, *_wrong_sizes(layer, shape), *_contradictions(layer, stated)]
            else:
                layers[name] = layer
        else:
            faults += found
    for name, layer in list(layers.items()):
        contradicted = [*_wrong_sizes(layer, shape), *_contradictions(layer, stated)]
        if contradicted:
            del layers[name]
            faults += contradicted
    return layers, faults


def _spec(module: LinearModule) -> ProjectionSpec:
    return ProjectionSpec(module.in_features, module.out_features, module.bits, module.codebook)


def _blocks(
    modules: Mapping[str, LinearModule], places: Mapping[str, ExpertName], lost: Collection[str]
) -> dict[str, _Block]:
    blocks: dict[str, _Block] = {}
    for name, (block_name, layer, expert, projection) in places.items():
        module = modules.get(name)
        if module is not None:
            block = blocks.get(block_name)
            if block is None:
                block = blocks[block_name] = _Block(layer)
            block.by_projection[projection][expert] = module
    for name in lost:
        place = places.get(name)
        if place is not None and place.block in blocks and name not in modules:
            blocks[place.block].lost[place.projection].add(place.expert)
    return blocks


def _missing(block_name: str, block: _Block, num_experts: int) -> Iterable[Glm53Error]:
    for projection, present in block.by_projection.items():
        experts = present.keys() | block.lost[projection]
        num_absent = num_experts - sum(expert < num_experts for expert in experts)
        if num_absent:
            first = next(expert for expert in range(num_experts) if expert not in experts)
            more = f" (and {num_absent - 1} more experts)" if num_absent > 1 else ""
            yield DamageError(
                "expert-missing",
                f"{block_name}.{first}.{projection}.trellis is missing or incomplete{more}",
                expected=f"{num_experts} experts",
                found=f"{len(experts)}",
                hint=_REFETCH,
            )
        surplus = sorted(expert for expert in experts if expert >= num_experts)
        if surplus:
            name = f"{block_name}.{surplus[0]}.{projection}.trellis"
            yield DamageError(
                "expert-surplus",
                f"{name} is one expert too many",
                expected=f"experts 0 to {num_experts - 1}, as config.json says",
                hint="fetch config.json of the same commit as the shards",
                files=[CONFIG_FILE],
                tensors=[name],
            )


def _biases(block: _Block) -> Iterable[Glm53Error]:
    for experts in block.by_projection.values():
        for module in experts.values():
            if module.has_bias:
                yield bias_unsupported(module.name)
                return


def bias_unsupported(module: str) -> DamageError:
    """The refusal of an expert with a bias: vLLM would drop it without a word."""
    return DamageError(
        "bias-unsupported",
        f"{module}.bias: routed experts with biases cannot be served",
        hint="use a model whose experts have none; adding them would need another kernel",
    )


def _common(experts: Mapping[int, LinearModule], num_experts: int) -> tuple[ProjectionSpec, list[Glm53Error]]:
    """The specification of most experts of a projection, and the modules that differ from it in more than bits."""
    votes: dict[tuple[int, int, Codebook], list[LinearModule]] = {}
    for module in experts.values():
        votes.setdefault((module.in_features, module.out_features, module.codebook), []).append(module)
    elected = max(votes, key=lambda candidate: len(votes[candidate]))
    in_features, out_features, codebook = elected
    counts = Counter(module.bits for module in votes[elected])
    bits = counts.most_common(1)[0][0]
    each = tuple(experts[one].bits if one in experts else bits for one in range(num_experts)) if len(counts) > 1 else ()
    spec = ProjectionSpec(in_features, out_features, bits, codebook, each)
    faults = [_differs(module, spec) for other, modules in votes.items() if other != elected for module in modules]
    return spec, faults


def _differs(module: LinearModule, expected: ProjectionSpec) -> Glm53Error:
    found = _spec(module)
    if found.codebook != expected.codebook:
        return DamageError(
            "codebook-mixed",
            f"{module.name} decodes with another codebook than the other experts of its layer",
            expected=_marker(module.name, expected.codebook),
            found=_marker(module.name, found.codebook),
            hint="the marker tensor was lost or is wrong; " + _REFETCH,
            tensors=[f"{module.name}.{TRELLIS}"],
        )
    return DamageError(
        "tensor-shape",
        f"{module.name}.trellis has another shape than the other experts of its layer",
        expected=f"a weight of {expected.in_features} x {expected.out_features}",
        found=f"{found.in_features} x {found.out_features}",
        hint=_REFETCH,
        tensors=[f"{module.name}.{TRELLIS}"],
    )


def _marker(module: str, codebook: Codebook) -> str:
    return "no codebook marker (3inst)" if codebook == "3inst" else f"{module}.{codebook}"


def _wrong_sizes(layer: MoELayer, shape: ModelShape | None) -> Iterable[Glm53Error]:
    gate, up, down = (layer.projections[projection] for projection in PROJECTIONS)
    hidden = shape.hidden_size if shape else gate.in_features
    width = shape.expert_size if shape else gate.out_features
    for projection, spec, size in (
        ("gate_proj", gate, (hidden, width)),
        ("up_proj", up, (hidden, width)),
        ("down_proj", down, (width, hidden)),
    ):
        if (spec.in_features, spec.out_features) != size:
            yield DamageError(
                "tensor-shape",
                f"{layer.block}.*.{projection}.trellis does not fit the model",
                expected=f"a weight of {size[0]} x {size[1]}",
                found=f"{spec.in_features} x {spec.out_features}",
                hint="fetch config.json and shards of one commit",
                files=[CONFIG_FILE],
            )
    books = {spec.codebook for spec in (gate, up, down)}
    if len(books) > 1:
        yield DamageError(
            "codebook-mixed",
            f"{layer.block}: gate, up and down have different codebooks ({', '.join(sorted(books))})",
            expected="one codebook a layer",
            hint=f"a marker tensor (.mcg or .mul1) was lost or is wrong; {_REFETCH}",
        )


def _uneven(layer: MoELayer, bits: int, key: str) -> Iterable[Glm53Error]:
    """Experts that differ from the others of their projection although one rate is stated for all."""
    for projection, spec in layer.projections.items():
        for expert, found in enumerate(spec.expert_bits):
            if found != spec.bits:
                name = layer.tensor_name(expert, projection, TRELLIS)
                yield DamageError(
                    "bits-by-expert",
                    f"{name} has another bit rate than the other experts of its layer, and {key} says {bits} for all",
                    expected=f"{spec.bits} bits",
                    found=f"{found} bits",
                    hint=f"{_REFETCH}; if experts are meant to differ, take {BITS} and {LAYER_BITS} out of its {KEY}",
                    tensors=[name],
                )


def _contradictions(layer: MoELayer, stated: QuantizationFields) -> Iterable[Glm53Error]:
    bits = stated.stated_bits(layer.layer)
    listed = layer.layer in stated.layer_bits
    key = f"{KEY}.{LAYER_BITS}[{layer.layer}]" if listed else f"{KEY}.{BITS}"
    if bits is not None:
        yield from _uneven(layer, bits, key)
    if bits is not None and set(layer.bits) != {bits}:
        wrong = next(projection for projection in PROJECTIONS if layer.projections[projection].bits != bits)
        even = len(set(layer.bits)) == 1 and not layer.is_mixed
        mended = f'write "{LAYER_BITS}": {{"{layer.layer}": {layer.bits[0]}}} into its {KEY}'
        mended = mended if even else f"take {BITS} and {LAYER_BITS} out of its {KEY}"
        yield DamageError(
            "bits-contradiction",
            f"{key} says {bits}, but {layer.tensor_name(0, wrong, TRELLIS)} has {layer.projections[wrong].bits} bits",
            expected=f"{bits} bits",
            found="{} bits for gate, {} for up, {} for down".format(*layer.bits),
            hint=f"fetch config.json of the same commit as the shards, or {mended}",
            files=[CONFIG_FILE],
        )
    codebook = layer.projections["gate_proj"].codebook
    if stated.codebook is not None and codebook != stated.codebook:
        yield DamageError(
            "codebook-contradiction",
            f"{KEY}.{CODEBOOK} says {stated.codebook!r}, but {layer.block}.0.gate_proj has "
            f"{_marker(f'{layer.block}.0.gate_proj', codebook)}",
            expected=_marker(f"{layer.block}.0.gate_proj", stated.codebook),
            found=_marker(f"{layer.block}.0.gate_proj", codebook),
            hint=f"the marker tensors were lost or are wrong; {_REFETCH}",
        )
