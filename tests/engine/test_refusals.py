"""Damaged packs through vLLM's own configuration path: refused before a process or a parameter is made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from vllm.engine.arg_utils import EngineArgs

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.engine import register
from glm53_exl3.engine.config import Exl3Config
from glm53_exl3.errors import Glm53Error
from support.packs import PackRecipe, edit_config, edit_tensors, linear, write_pack

EXPERT = "model.layers.1.mlp.experts.3.gate_proj"


def drop(pack: Path, name: str) -> None:
    path = pack / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)


def double(pack: Path) -> None:
    tensors = load_file(pack / "model.safetensors")
    save_file({f"{EXPERT}.trellis": tensors[f"{EXPERT}.trellis"]}, pack / "other.safetensors")


def truncate(pack: Path) -> None:
    with (pack / "model.safetensors").open("r+b") as file:
        file.truncate(1_000_000)


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "codebook marker removed": (lambda pack: drop(pack, f"{EXPERT}.mcg"), "codebook-mixed", EXPERT),
    "trellis missing": (lambda pack: drop(pack, f"{EXPERT}.trellis"), "tensor-missing", f"{EXPERT}.trellis"),
    "trellis doubled": (double, "tensor-doubled", f"{EXPERT}.trellis"),
    "shard truncated": (truncate, "shard-truncated", "model.safetensors"),
    "layer_bits lies": (
        lambda pack: edit_config(pack, lambda stated: stated.update(layer_bits={"2": 4})),
        "bits-contradiction",
        "model.layers.2.mlp.experts.0.gate_proj.trellis",
    ),
    "bits lies": (
        lambda pack: edit_config(pack, lambda stated: stated.update(bits=5)),
        "bits-contradiction",
        "model.layers.1.mlp.experts.0.gate_proj.trellis",
    ),
    "wrong quant_method": (
        lambda pack: edit_config(pack, lambda stated: stated.update(quant_method="fp8")),
        "quant-method",
        "fp8",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register()
    register()


def configure(pack: Path, **changes: object) -> None:
    EngineArgs(model=str(pack), enforce_eager=True, max_model_len=128, **changes).create_engine_config()  # type: ignore[arg-type]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_pack(), tmp_path / "pack"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pack_is_refused_by_name(pack: Path, damage: str) -> None:
    change, error_id, name = DAMAGES[damage]
    change(pack)
    with pytest.raises(Glm53Error) as caught:
        configure(pack)
    assert caught.value.id == error_id
    assert name in caught.value.what
    assert caught.value.hint


def test_sound_pack_is_taken(pack: Path) -> None:
    configure(pack)


def test_wrong_quant_method_is_refused_also_when_exl3_is_asked_for(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.update(quant_method="fp8"))
    with pytest.raises(Glm53Error, match="quant_method") as caught:
        configure(pack, quantization="exl3")
    assert caught.value.id == "quant-method"


def test_models_of_other_methods_are_left_alone(pack: Path) -> None:
    tensors = {
        name: tensor for name, tensor in load_file(pack / "model.safetensors").items() if ".experts." not in name
    }
    save_file(tensors, pack / "model.safetensors")
    edit_config(pack, lambda stated: (stated.clear(), stated.update(quant_method="fp8", activation_scheme="dynamic")))
    configure(pack)


def test_model_that_is_not_on_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Glm53Error, match="neither a folder nor in the Hugging Face cache") as caught:
        Exl3Config().maybe_update_config("nobody/no-such-pack")
    assert caught.value.id == "pack-not-local"
    assert "hf download nobody/no-such-pack" in caught.value.hint


def test_snapshot_without_weights_is_refused_as_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What vLLM leaves in the cache when it has fetched config.json alone.
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *arguments, **options: str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Glm53Error) as caught:
        Exl3Config().maybe_update_config("somebody/pack")
    assert caught.value.id == "pack-not-local"


def test_wrong_quant_method_of_a_cached_repository_is_refused(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *arguments, **options: str(pack))
    config = SimpleNamespace(name_or_path="somebody/pack")
    with pytest.raises(Glm53Error, match="quant_method"):
        Exl3Config.override_quantization_method({"quant_method": "fp8"}, None, config)


def test_exl3_outside_the_routed_experts_is_refused(tmp_path: Path) -> None:
    recipe = PackRecipe(bits={1: 2}, stated={"quant_method": "exl3"})
    pack = write_pack(tmp_path, recipe)
    tensors = linear(np.random.default_rng(0), "model.layers.1.self_attn.o_proj", 128, 128, 2, recipe)
    edit_tensors(pack, lambda stored: stored.update(tensors))
    with pytest.raises(Glm53Error, match=r"model\.layers\.1\.self_attn\.o_proj is EXL3") as caught:
        Exl3Config().maybe_update_config(str(pack))
    assert caught.value.id == "linear-unsupported"
