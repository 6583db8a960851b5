"""Refusals through plain `vllm serve`: before it serves, with the tensor's name and the fix in its output.

Faults that headers show are in tests/engine/test_refusals.py; here are those of loading, and one of each kind of path.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import ServerError
from support.packs import edit_config

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


def test_cut_inside_a_hadamard_block_is_refused(start_server: Callable[..., Any]) -> None:
    # 256 channels an expert: four ranks would get 64 each.
    error = refusal(start_server, tensor_parallel_size=4)
    assert error.id == "shard-cut"
    assert "model.layers.1.mlp.experts.*.gate_proj.trellis" in error.what
    assert "tensor-parallel size of 1, 2" in error.hint
