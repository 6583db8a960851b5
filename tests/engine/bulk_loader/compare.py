"""Load a tiny Glm5Next with and without `--load-format glm53_exl3` in vLLM; print a report as JSON on the last line.

A script, because vLLM keeps its state in globals. Usage: compare.py EMPTY_FOLDER
"""

from __future__ import annotations

import gc
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stubs
import torch
from safetensors.torch import load_file, save_file

import checkpoint
from glm53_exl3.engine import register
from glm53_exl3.engine.loader import ExpertLoader
from support.packs import PROJECTIONS, edit_tensors, write_json

PLAIN_LAYER = 2
Change = Callable[[torch.nn.Module], object]


class Warnings(logging.Handler):
    """Collects what the plugin says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "EXL3 experts, mcg" not in record.getMessage():
            self.lines.append(f"{record.levelname}: {record.getMessage()}")

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


LOG = Warnings()


def main(directory: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    pack = checkpoint.write_checkpoint(directory / "pack")
    stubs.install()
    register()
    start_distributed(engine_config(pack), directory)
    return {
        "target": compare(pack),
        "mtp": compare(pack, draft=True),
        "plain": compare(write_plain_layer(pack, directory / "plain")),
        "moved": compare(pack, change=move_parameters),
        "tracked": compare(pack, extra={"enable_weights_track": True, "num_threads": 1}),
        "strategy": compare(pack, safetensors_load_strategy="eager"),
        "anew": names_outside_a_load(pack),
        "unquantized": compare(write_unquantized(pack, directory / "unquantized")),
        "nan": refusal(write_nan(pack, directory / "nan")),
        "alive": living_layers(),
    }


def engine_config(pack: Path, load_format: str = "auto", **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(pack),
        skip_tokenizer_init=True,
        language_model_only=True,
        enable_prefix_caching=False,
        enforce_eager=True,
        max_model_len=256,
        load_format=load_format,
        use_tqdm_on_load=False,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
        **options,
    ).create_engine_config()


def start_distributed(config: Any, directory: Path) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{directory}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)


def load(config: Any, draft: bool = False, change: Change | None = None) -> torch.nn.Module:
    """A model with its weights, before they are processed. Memory that nothing was loaded into is full of ones."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    model_config = config.speculative_config.draft_model_config if draft else config.model_config
    with set_current_vllm_config(config), set_default_torch_dtype(model_config.dtype):
        with torch.device("cpu"):
            model: torch.nn.Module = initialize_model(config, model_config=model_config)
        for parameter in model.parameters():
            parameter.data.fill_(1)
        if change is not None:
            change(model)
        # Here, because making a configuration rearranges vLLM's logging.
        logger = logging.getLogger("vllm.glm53_exl3.engine")
        logger.disabled = False
        logger.setLevel(logging.INFO)
        logger.addHandler(LOG)
        get_model_loader(config.load_config).load_weights(model, model_config)
    return model


def compare(
    pack: Path,
    *,
    draft: bool = False,
    change: Change | None = None,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Load twice; the options are those of the second load."""
    expected = contents(load(engine_config(pack), draft))
    LOG.take()
    calls, original = [], ExpertLoader.__call__

    def counting(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments[3])
        return original(*arguments, **keywords)

    ExpertLoader.__call__ = counting  # type: ignore[method-assign]
    try:
        config = engine_config(pack, "glm53_exl3", model_loader_extra_config=extra or {}, **options)
        model = load(config, draft, change)
        found = contents(model)
    finally:
        ExpertLoader.__call__ = original  # type: ignore[method-assign]
    return {
        "class": type(model).__name__,
        "compared": len(expected),
        "names": sorted(expected.keys() ^ found.keys()),
        "different": [name for name in expected if not torch.equal(expected[name], found[name])],
        "one_by_one": len(calls),
        "log": LOG.take(),
    }


def contents(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter by name; those of EXL3 experts as their loaders see them."""
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        loader = getattr(getattr(module, "quant_method", None), "expert_loader", None)
        if loader is not None:
            found |= {f"{name}.{projection}.{suffix}": view for (projection, suffix), view in loader.views.items()}
            for parameter in module.quant_method.parameter_names:
                del found[f"{name}.{parameter}"]
    # As bytes: the rest of the checkpoint is random, and a NaN is not equal to itself.
    return {name: tensor.detach().clone().reshape(-1).view(torch.uint8) for name, tensor in found.items()}


def move_parameters(model: torch.nn.Module) -> None:
    """As offloading does it, for two layers."""
    for layer in (2, 4):
        experts = model.get_submodule(f"language_model.model.layers.{layer}.mlp.experts.routed_experts")
        experts.w13_suh.data = experts.w13_suh.data.clone()


def write_plain_layer(pack: Path, copy: Path) -> Path:
    """The experts of one layer as ordinary weights."""
    shutil.copytree(pack, copy)
    shard = copy / f"{checkpoint.experts_shard(PLAIN_LAYER)}.safetensors"
    shapes = {"down_proj": (checkpoint.HIDDEN, checkpoint.WIDTH)}
    tensors = {
        f"{checkpoint.PREFIX}.layers.{PLAIN_LAYER}.mlp.experts.{expert}.{projection}.weight": torch.randn(
            shapes.get(projection, (checkpoint.WIDTH, checkpoint.HIDDEN))
        ).to(torch.bfloat16)
        for expert in range(checkpoint.EXPERTS)
        for projection in PROJECTIONS
    }
    save_file(tensors, shard)
    reindex(copy)
    return copy


def write_unquantized(pack: Path, copy: Path) -> Path:
    """The whole model as ordinary weights."""
    shutil.copytree(pack, copy)
    for layer in checkpoint.BITS:
        (copy / f"{checkpoint.experts_shard(layer)}.safetensors").unlink()
        tensors = {
            f"{checkpoint.PREFIX}.layers.{layer}.mlp.experts.{expert}.{projection}.weight": torch.zeros(
                (checkpoint.HIDDEN, checkpoint.WIDTH)
                if projection == "down_proj"
                else (checkpoint.WIDTH, checkpoint.HIDDEN),
                dtype=torch.bfloat16,
            )
            for expert in range(checkpoint.EXPERTS)
            for projection in PROJECTIONS
        }
        save_file(tensors, copy / f"plain-{layer}.safetensors")
    config = json.loads((copy / "config.json").read_text())
    del config["quantization_config"]
    write_json(copy / "config.json", config)
    reindex(copy)
    return copy


def write_nan(pack: Path, copy: Path) -> Path:
    shutil.copytree(pack, copy)
    shards = [path.stem for path in sorted(copy.glob("*.safetensors"))]
    name = f"{checkpoint.PREFIX}.layers.3.mlp.experts.1.up_proj.suh"
    edit_tensors(
        copy, lambda tensors: tensors[name].__setitem__(9, float("nan")), shards.index(checkpoint.experts_shard(3))
    )
    return copy


def reindex(pack: Path) -> None:
    weight_map = {name: path.name for path in pack.glob("*.safetensors") for name in load_file(path)}
    write_json(pack / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def names_outside_a_load(pack: Path) -> dict[str, int]:
    """What vLLM gets when it asks the loader for all weights itself, to load them anew, after a load."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader

    config = engine_config(pack, "glm53_exl3")
    model = load(config)
    with set_current_vllm_config(config):
        weights = get_model_loader(config.load_config).get_all_weights(config.model_config, model)
        names = {name for name, _ in weights}
    stored = {name for path in pack.glob("*.safetensors") for name in load_file(path)}
    LOG.take()
    return {"missing": len(stored - names), "stored": len(stored)}


def refusal(pack: Path) -> str:
    try:
        load(engine_config(pack, "glm53_exl3"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def living_layers() -> int:
    """Layers of experts that outlive their models."""
    gc.collect()
    return sum(type(thing).__name__ == "RoutedExperts" for thing in gc.get_objects())


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
