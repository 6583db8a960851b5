"""Load a tiny EXL3 checkpoint into vLLM's Glm5Next classes on a CPU; print a report as JSON on the last line.

A script, because vLLM keeps its state in globals and `stubs` changes some. Usage: load.py EMPTY_FOLDER
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stubs
import torch
from safetensors.torch import load_file

import checkpoint
from glm53_exl3.decode import dequantize, moe_dense_reference
from glm53_exl3.engine import register
from support.packs import PROJECTIONS, edit_tensors

SUFFIXES = ("trellis", "suh", "svh", "mcg")
Tensors = dict[str, torch.Tensor]


def main(directory: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    pack = checkpoint.write_checkpoint(directory / "pack")
    stored = {name: tensor for path in pack.glob("*.safetensors") for name, tensor in load_file(path).items()}
    stubs.install()
    register()
    withheld = expert_tensor(checkpoint.MTP_LAYER, 2, "up_proj", "svh")
    refused = refusal_of_pack_without(withheld, pack, directory / "incomplete")
    config = engine_config(pack)
    draft = config.speculative_config.draft_model_config
    start_distributed(config, directory)
    report = {
        "quantization": [config.model_config.quantization, draft.quantization, type(config.quant_config).__name__],
        "withheld": withheld,
        "refused_pack": refused,
        "target": load(config, config.model_config, stored),
        "mtp": load(config, draft, stored, withheld),
    }
    torch.distributed.destroy_process_group()
    return report


def expert_tensor(layer: int, expert: int, projection: str, suffix: str) -> str:
    return f"{checkpoint.PREFIX}.layers.{layer}.mlp.experts.{expert}.{projection}.{suffix}"


def engine_config(pack: Path) -> Any:
    """vLLM's configuration of a server of this pack. The vision tower is left out: it holds nothing quantized."""
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(pack),
        skip_tokenizer_init=True,
        language_model_only=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        max_model_len=256,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    ).create_engine_config()


def refusal_of_pack_without(name: str, pack: Path, copy: Path) -> str:
    shutil.copytree(pack, copy)
    shards = [path.stem for path in sorted(copy.glob("*.safetensors"))]
    shard = shards.index(checkpoint.experts_shard(checkpoint.MTP_LAYER))
    edit_tensors(copy, lambda tensors: tensors.pop(name), shard)
    return refusal(engine_config, copy)


def refusal(call: Any, *arguments: Any) -> str:
    """Type and text of the error that a call ends in; empty when it ends in none."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def start_distributed(config: Any, directory: Path) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(config):
        # A file instead of a port: nothing else can have taken it.
        init_distributed_environment(1, 0, f"file://{directory}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)


def load(config: Any, model_config: Any, stored: Tensors, withheld: str | None = None) -> dict[str, Any]:
    """Take the steps of vLLM's loader for one model, and look at the experts between them.

    Args:
        config: configuration of the server.
        model_config: of the model, target or draft.
        stored: every tensor of the checkpoint by name.
        withheld: a tensor that arrives only after the first attempt to finish.
    """
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.utils.torch_utils import set_default_torch_dtype

    loader = get_model_loader(config.load_config)
    cpu = torch.device("cpu")
    with set_default_torch_dtype(model_config.dtype), cpu:
        model = initialize_model(config, model_config=model_config)
    weights = loader.get_all_weights(model_config, model)
    loaded = model.load_weights((name, tensor) for name, tensor in weights if name != withheld)
    experts = dict(routed_experts(model))
    report: dict[str, Any] = {"class": type(model).__name__, "layers": sorted(experts)}
    if withheld is not None:
        layer = experts[checkpoint.MTP_LAYER]
        report["refused_stream"] = refusal(layer.quant_method.process_weights_after_loading, layer)
        loaded |= model.load_weights([(withheld, stored[withheld])])
    report["not_loaded"] = sorted({name for name, _ in model.named_parameters()} - loaded)
    report["expert_parameters"] = sum("routed_experts" in name for name in loaded)
    report["different"], report["compared"] = compare_packed(experts, stored)
    process_weights_after_loading(model, model_config, cpu)
    report["kernels"] = {number: compare_kernel(number, layer, stored) for number, layer in experts.items()}
    return report


def routed_experts(model: torch.nn.Module) -> Iterator[tuple[int, Any]]:
    """vLLM's layers of routed experts by the layer index in their module name."""
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    for name, module in model.named_modules():
        if isinstance(module, RoutedExperts):
            match = re.search(r"\.layers\.(\d+)\.", name)
            assert match is not None, name
            yield int(match[1]), module


def compare_packed(experts: dict[int, Any], stored: Tensors) -> tuple[list[str], int]:
    """Stored tensors that did not land in their view of the layer's parameters, and how many were compared."""
    different: list[str] = []
    compared = 0
    for number, layer in experts.items():
        storages = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
        for (projection, suffix), view in layer.quant_method._parameters.views.items():
            assert view.untyped_storage().data_ptr() in storages, (number, projection, suffix)
            for expert in range(checkpoint.EXPERTS):
                name = expert_tensor(number, expert, projection, suffix)
                compared += 1
                if not same(view[expert], stored[name]):
                    different.append(name)
    return different, compared


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    return left.dtype == right.dtype and torch.equal(left, right)


def compare_kernel(number: int, layer: Any, stored: Tensors) -> dict[str, Any]:
    """What the layer's kernel holds and computes against the stored tensors, decoded here."""
    method = layer.quant_method
    kernel = method._holder.kernel
    dense = []
    for projection in PROJECTIONS:
        packed = [
            [stored[expert_tensor(number, expert, projection, suffix)] for suffix in SUFFIXES[:3]]
            for expert in range(checkpoint.EXPERTS)
        ]
        dense.append(torch.stack([dequantize(*tensors, "mcg", dtype=torch.float32) for tensors in packed]))
    # Large enough that the limit of SwiGLU acts.
    x = 50 * torch.randn(8, checkpoint.HIDDEN, dtype=torch.bfloat16)
    ids = torch.stack([torch.randperm(checkpoint.EXPERTS)[:2] for _ in x]).int()
    weights = torch.rand(8, 2)
    output = method.apply(layer, x, weights, ids)
    expected = {
        limit: moe_dense_reference(x, ids, weights, *dense, limit).to(x.dtype)
        for limit in (0.0, checkpoint.SWIGLU_LIMIT)
    }
    return {
        "backend": kernel.backend,
        "bits": stored[expert_tensor(number, 0, "gate_proj", "trellis")].shape[-1] // 16,
        "limit": kernel._limit,
        "dense_equal": [same(held, decoded) for held, decoded in zip(kernel._dense, dense, strict=True)],
        "output_equal": same(output, expected[checkpoint.SWIGLU_LIMIT]),
        "limit_acts": not torch.equal(output, expected[0.0]),
        "packed_parameters_left": [name for name, _ in layer.named_parameters() if name.startswith("w")],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
