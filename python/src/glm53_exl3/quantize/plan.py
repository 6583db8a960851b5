"""What a quantization will do, decided and checked before the long part starts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glm53_exl3.errors import PackError
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.format.names import PROJECTIONS, ExpertName, parse_expert, split_tensor
from glm53_exl3.format.quantization_config import KEY
from glm53_exl3.format.tensors import BIAS, require_bits, require_rotatable
from glm53_exl3.pack import files
from glm53_exl3.pack.moe_layers import bias_unsupported
from glm53_exl3.pack.safetensors_header import StoredTensor, read_header

_STACKED = re.compile(r"\.experts\.(gate_up_proj|gate_proj|up_proj|down_proj)(\.weight)?$")
_DTYPES = ("BF16", "F16", "F32")


@dataclass(frozen=True)
class ExpertWeight:
    """One weight to quantize.

    Attributes:
        name: name of the module, without `.weight`.
        expert: what it is.
        bits: bits a weight it gets.
        num_weights: its size.
    """

    name: str
    expert: ExpertName
    bits: int
    num_weights: int


@dataclass(frozen=True)
class QuantizePlan:
    """A checked quantization.

    Attributes:
        source: folder of the checkpoint.
        shards: its safetensors files.
        experts: weights to quantize by tensor name.
        config: its `config.json`.
        bits: bits of layers not in `layer_bits`.
        layer_bits: bits by layer index.
        codebook: codebook of all of them.
    """

    source: Path
    shards: tuple[Path, ...]
    experts: Mapping[str, ExpertWeight]
    config: Mapping[str, object]
    bits: int
    layer_bits: Mapping[int, int]
    codebook: Codebook


def plan_quantization(source: Path, bits: int, layer_bits: Mapping[int, int], codebook: Codebook) -> QuantizePlan:
    """Find the routed experts of a checkpoint and check that each can be quantized.

    Raises:
        PackError: no checkpoint, already quantized, no routed experts under known names, or a `layer_bits` layer
            without any.
        FormatError: bits outside 1 to 8, or a weight whose sides are not multiples of 128.
    """
    require_bits(bits, "--bits")
    for layer, layer_rate in layer_bits.items():
        require_bits(layer_rate, f"--layer-bits {layer}")
    config = files.read_json(source / files.CONFIG_FILE)
    if KEY in config:
        raise PackError(
            "already-quantized",
            f"{source} has a {KEY} already",
            hint="start from the unquantized checkpoint",
        )
    shards, missing = files.shard_paths(source, files.read_index(source))
    if missing:
        raise files.missing_shard(missing[0])
    tensors = [tensor for shard in shards for tensor in read_header(shard)]
    experts = {
        tensor.name: weight for tensor in tensors if (weight := _expert_weight(tensor, bits, layer_bits)) is not None
    }
    _require_experts(source, tensors, experts, layer_bits)
    return QuantizePlan(source, tuple(shards), experts, config, bits, dict(layer_bits), codebook)


def _expert_weight(tensor: StoredTensor, bits: int, layer_bits: Mapping[int, int]) -> ExpertWeight | None:
    module, suffix = split_tensor(tensor.name)
    expert = parse_expert(module)
    if expert is not None and suffix == BIAS:
        raise bias_unsupported(module)
    if expert is None or suffix != "weight":
        return None
    if len(tensor.shape) != 2 or tensor.dtype not in _DTYPES:
        raise PackError(
            "tensor-shape",
            f"{tensor.name} cannot be quantized",
            expected=f"a matrix of {' or '.join(_DTYPES)}",
            found=f"{tensor.dtype} {list(tensor.shape)}",
            hint="start from the unquantized checkpoint",
        )
    out_features, in_features = tensor.shape
    require_rotatable(in_features, out_features, tensor.name)
    return ExpertWeight(module, expert, layer_bits.get(expert.layer, bits), in_features * out_features)


def _require_experts(
    source: Path,
    tensors: list[StoredTensor],
    experts: Mapping[str, ExpertWeight],
    layer_bits: Mapping[int, int],
) -> None:
    if not experts:
        stacked = next((tensor.name for tensor in tensors if _STACKED.search(tensor.name)), None)
        found = f"{stacked}, all experts in one tensor" if stacked else "no tensor of that name"
        raise PackError(
            "no-experts",
            f"{source} has no routed experts under a known name",
            expected="...layers.<L>...experts.<E>.{gate,up,down}_proj.weight, as Glm4Moe, Qwen3Moe and Glm5Next store",
            found=found,
            hint="save the checkpoint with one tensor for each projection of each expert",
        )
    _require_complete({weight.expert for weight in experts.values()})
    layers = {weight.expert.layer for weight in experts.values()}
    for layer in layer_bits:
        if layer not in layers:
            raise PackError(
                "layer-bits",
                f"--layer-bits names layer {layer}, which has no routed experts",
                expected=f"one of {', '.join(map(str, sorted(layers)))}",
                hint="leave it out",
            )


def _require_complete(experts: set[ExpertName]) -> None:
    """Every block has all three projections of every expert up to its last."""
    counts = Counter(expert.block for expert in experts)
    last: dict[str, int] = {}
    for expert in experts:
        last[expert.block] = max(expert.expert, last.get(expert.block, 0))
    for block, found in counts.items():
        expected = (last[block] + 1) * len(PROJECTIONS)
        if found != expected:
            raise PackError(
                "expert-missing",
                f"{block} lacks weights of experts",
                expected=f"{expected} weights",
                found=str(found),
                hint="fetch the checkpoint again, all files of one commit",
            )
