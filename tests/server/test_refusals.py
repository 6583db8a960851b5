"""Refusals through plain `vllm serve`: before it serves, with the tensor's name and the fix in its output.

Faults that headers show are in tests/engine/test_refusals.py; here are those of loading, and one of each kind of path.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import ServerError
from support.packs import PackRecipe, edit_config, expert_tensors, write_json

SCALE = "model.layers.1.mlp.experts.3.gate_proj.suh"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_pack(), tmp_path / "pack"))


def refusal(start_server: Callable[..., Any], **options: Any) -> ServerError:
    with pytest.raises(ServerError) as caught, start_server(**options):
        pytest.fail("the server started")
    assert caught.value.hint
    return caught.value


def test_nan_in_a_scale_is_refused_while_loading(pack: Path, start_server: Callable[..., Any]) -> None:
    tensors = load_file(pack / "model.safetensors")
    tensors[SCALE][7] = torch.nan
    save_file(tensors, pack / "model.safetensors")
    error = refusal(start_server, model=pack)
    assert error.id == "scale-not-finite"
    assert SCALE in error.what
    assert error.found == "1 that are not"


def test_wrong_bits_are_refused_while_configuring(pack: Path, start_server: Callable[..., Any]) -> None:
    edit_config(pack, lambda stated: stated.update(bits=5))
    error = refusal(start_server, model=pack)
    assert error.id == "bits-contradiction"
    assert "model.layers.1.mlp.experts.0.gate_proj.trellis has 2 bits" in error.what


def test_cut_inside_a_hadamard_block_is_refused(pack: Path, start_server: Callable[..., Any]) -> None:
    # 128 channels an expert: two ranks would get 64 each. Refused as the model is built, before its weights are read.
    recipe = PackRecipe(num_experts=8, width=128)
    tensors = {name: t for name, t in load_file(pack / "model.safetensors").items() if ".mlp.experts." not in name}
    for layer in recipe.bits:
        tensors |= {name: torch.from_numpy(array) for name, array in expert_tensors(recipe, layer).items()}
    save_file(tensors, pack / "model.safetensors")
    config = json.loads((pack / "config.json").read_text())
    write_json(pack / "config.json", config | {"moe_intermediate_size": recipe.width})
    error = refusal(start_server, model=pack, tensor_parallel=2)
    assert error.id == "shard-cut"
    assert "model.layers.1.mlp.experts.*.gate_proj.trellis" in error.what
    assert "64 a rank" in error.what
    assert "tensor-parallel size of 1," in error.hint
