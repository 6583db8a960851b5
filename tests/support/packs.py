"""Small packs of routed experts only: random trellises, which are all valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

MCG = -877912083
MUL1 = -2082680531
MARKERS = {"mcg": MCG, "mul1": MUL1}
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


Rates = int | tuple[int, int, int]


@dataclass
class PackRecipe:
    """What a test pack holds. `bits` is K by layer, or (gate, up, down) by layer, or a list of either, by expert."""

    bits: Mapping[int, Rates | list[Rates]] = field(default_factory=lambda: {1: 2, 2: 3})
    stated: dict[str, Any] = field(
        default_factory=lambda: {"quant_method": "exl3", "bits": 2, "codebook": "mcg", "layer_bits": {"2": 3}}
    )
    hidden: int = 256
    width: int = 128
    num_experts: int = 4
    codebook: str = "mcg"
    prefix: str = "model.layers"
    marker_shape: tuple[int, ...] = ()

    def config(self) -> dict[str, Any]:
        """A Glm4Moe `config.json` of this size."""
        return {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "hidden_size": self.hidden,
            "moe_intermediate_size": self.width,
            "n_routed_experts": self.num_experts,
            "num_hidden_layers": 1 + max(self.bits),
            "first_k_dense_replace": min(self.bits),
            "quantization_config": self.stated,
        }


def linear(rng: np.random.Generator, name: str, rows: int, columns: int, bits: int, recipe: PackRecipe) -> dict:
    """Tensors of one EXL3 linear `[rows, columns]`."""
    tensors = {
        f"{name}.trellis": rng.integers(-(2**15), 2**15, (rows // 16, columns // 16, 16 * bits)).astype(np.int16),
        f"{name}.suh": rng.choice([-1.0, 1.0], rows).astype(np.float16),
        f"{name}.svh": (rng.choice([-1.0, 1.0], columns) * 0.02).astype(np.float16),
    }
    if recipe.codebook in MARKERS:
        tensors[f"{name}.{recipe.codebook}"] = np.full(recipe.marker_shape, MARKERS[recipe.codebook], np.int32)
    return tensors


def expert_tensors(recipe: PackRecipe, layer: int, seed: int = 0) -> dict[str, np.ndarray]:
    """All tensors of the routed experts of one layer."""
    rng = np.random.default_rng(seed + layer)
    stated = recipe.bits[layer]
    tensors: dict[str, np.ndarray] = {}
    for expert in range(recipe.num_experts):
        bits = stated[expert] if isinstance(stated, list) else stated
        rates = (bits, bits, bits) if isinstance(bits, int) else bits
        for projection, rate in zip(PROJECTIONS, rates, strict=True):
            rows, columns = (
                (recipe.width, recipe.hidden) if projection == "down_proj" else (recipe.hidden, recipe.width)
            )
            name = f"{recipe.prefix}.{layer}.mlp.experts.{expert}.{projection}"
            tensors |= linear(rng, name, rows, columns, rate, recipe)
    return tensors


def write_pack(directory: Path, recipe: PackRecipe) -> Path:
    """One shard a layer, an index and a `config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    for number, layer in enumerate(recipe.bits, start=1):
        tensors = expert_tensors(recipe, layer)
        shard = f"model-{number:05}-of-{len(recipe.bits):05}.safetensors"
        save_file(tensors, directory / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(directory / "config.json", recipe.config())
    return directory


def write_json(path: Path, value: object) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value), encoding="utf-8")


def edit_config(pack: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the `quantization_config` of a pack in place."""
    config = json.loads((pack / "config.json").read_text())
    change(config["quantization_config"])
    write_json(pack / "config.json", config)


def edit_tensors(pack: Path, change: Callable[[dict[str, np.ndarray]], object], shard: int = 0) -> Path:
    """Change the tensors of one shard in place; the index follows."""
    path = sorted(pack.glob("*.safetensors"))[shard]
    tensors = load_file(path)
    before = set(tensors)
    change(tensors)
    save_file(tensors, path)
    index_path = pack / "model.safetensors.index.json"
    if index_path.exists():
        index = json.loads(index_path.read_text())
        for name in before.difference(tensors):
            del index["weight_map"][name]
        index["weight_map"] |= dict.fromkeys(tensors, path.name)
        write_json(index_path, index)
    return path
