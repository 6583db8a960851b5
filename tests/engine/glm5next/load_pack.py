"""Load a Glm5Next pack with an MTP layer into vLLM on a CPU; print what was left out as JSON on the last line.

Usage: load_pack.py PACK EMPTY_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import stubs
import torch

from glm53_exl3.engine import register


def main(pack: Path, folder: Path) -> dict[str, Any]:
    """By class: how many parameters were loaded, and which were not."""
    stubs.install()
    register()
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    config = EngineArgs(
        model=str(pack),
        enable_prefix_caching=False,
        enforce_eager=True,
        max_model_len=20480,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    ).create_engine_config()
    with set_current_vllm_config(config):
        # A file instead of a port: nothing else can have taken it.
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        initialize_model_parallel(1, 1)
    report: dict[str, Any] = {}
    for model_config in (config.model_config, config.speculative_config.draft_model_config):
        loader = get_model_loader(config.load_config)
        with set_default_torch_dtype(model_config.dtype), torch.device("cpu"):
            model = initialize_model(config, model_config=model_config)
        loaded = model.load_weights(loader.get_all_weights(model_config, model))
        left_out = {name for name, _ in model.named_parameters()} - set(loaded)
        report[type(model).__name__] = {"loaded": len(loaded), "left_out": sorted(left_out)}
    torch.distributed.destroy_process_group()
    return report


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
