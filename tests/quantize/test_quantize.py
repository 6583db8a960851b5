"""`quantize`: what it refuses before it starts, and that a pack it writes reads back exactly."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from glm53_exl3.cli.main import application
from glm53_exl3.cli.quantize import parse_layer_bits
from glm53_exl3.decode import decode_trellis, dequantize, quantize
from glm53_exl3.errors import FormatError, Glm53Error, PackError
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.quantize.pack import write_pack
from glm53_exl3.quantize.plan import plan_quantization

# Small and at 3 bits, the rate at which the encoder is fastest: these tests are about files.
HIDDEN = WIDTH = 128
EXPERTS = 1
PROJECTIONS = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
PREFIXES = {
    "Glm4MoeForCausalLM": "model.layers",
    "Qwen3MoeForCausalLM": "model.layers",
    "Glm5NextForConditionalGeneration": "model.language_model.layers",
}


def checkpoint(directory: Path, architecture: str = "Glm4MoeForCausalLM", shards: int = 1) -> Path:
    """Two layers of one expert and a router, in one shard or in one shard a layer."""
    directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    weight_map: dict[str, str] = {}
    by_shard: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    for layer in range(2):
        tensors = by_shard[layer % shards]
        prefix = f"{PREFIXES[architecture]}.{layer}.mlp"
        tensors[f"{prefix}.gate.weight"] = torch.randn(EXPERTS, HIDDEN, generator=generator)
        for expert in range(EXPERTS):
            for projection, shape in PROJECTIONS.items():
                weight = torch.randn(shape, generator=generator) * 0.05
                tensors[f"{prefix}.experts.{expert}.{projection}.weight"] = weight.bfloat16()
    for number, tensors in enumerate(by_shard, start=1):
        name = "model.safetensors" if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        save_file(tensors, directory / name)
        weight_map |= dict.fromkeys(tensors, name)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sizes = {
        "hidden_size": HIDDEN,
        "moe_intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_experts" if architecture.startswith("Qwen3") else "n_routed_experts": EXPERTS,
        "mlp_layer_types": ["sparse", "sparse"],
    }
    config = {"architectures": [architecture]}
    config |= {"text_config": sizes} if "language_model" in PREFIXES[architecture] else sizes
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    return directory


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "source")


@pytest.mark.parametrize(("architecture", "shards"), [*((name, 2) for name in PREFIXES), ("Glm4MoeForCausalLM", 1)])
def test_pack_has_the_planned_bits_and_is_sound(tmp_path: Path, architecture: str, shards: int) -> None:
    source = checkpoint(tmp_path / "source", architecture, shards)
    target = tmp_path / "target"
    seen: list[str] = []
    plan = plan_quantization(source, 3, {1: 4}, "mcg")
    write_pack(plan, target, progress=lambda name, num_weights: seen.append(name))
    inventory = read_inventory(target)
    inventory.require_sound()
    assert {layer.layer: layer.bits for layer in inventory.layers.values()} == {0: (3, 3, 3), 1: (4, 4, 4)}
    assert len(seen) == len(plan.experts) == 6
    assert (target / "tokenizer.json").exists()
    assert len(list(target.glob("*.safetensors"))) == shards
    stated = json.loads((target / "config.json").read_text())["quantization_config"]
    assert stated == {
        "quant_method": "exl3",
        "bits": 3,
        "codebook": "mcg",
        "layer_bits": {"1": 4},
        "scope": "routed_experts_only",
    }


def test_weights_come_back_close_and_the_rest_unchanged(tmp_path: Path, source: Path) -> None:
    write_pack(plan_quantization(source, 4, {}, "mul1"), tmp_path / "target")
    stored = load_file(tmp_path / "target" / "model.safetensors")
    for name, weight in load_file(source / "model.safetensors").items():
        if ".experts." not in name:
            assert torch.equal(stored[name], weight)
            continue
        module = name.removesuffix(".weight")
        trellis, suh, svh = (stored[f"{module}.{suffix}"] for suffix in ("trellis", "suh", "svh"))
        assert stored[f"{module}.mul1"].item() == -2082680531
        error = (dequantize(trellis, suh, svh, "mul1").T - weight.float()).square().mean()
        # 4 bits: mean squared error about 0.0047 of the power (tests/data/golden/exl3_quantize_mse.json).
        assert error < 0.008 * weight.float().square().mean()


def test_stored_tensors_decode_bit_for_bit_to_what_was_encoded(tmp_path: Path, source: Path) -> None:
    write_pack(plan_quantization(source, 3, {}, "mcg"), tmp_path / "target", seed=5)
    stored = load_file(tmp_path / "target" / "model.safetensors")
    weights = load_file(source / "model.safetensors")
    modules = read_inventory(tmp_path / "target").modules
    assert len(modules) == 6
    for name, module in modules.items():
        seed = zlib.crc32(f"5:{name}".encode())
        encoded = quantize(weights[f"{name}.weight"].float().T, 3, "mcg", seed=seed)
        decoded = decode_trellis(stored[f"{name}.trellis"], module.codebook)
        assert torch.equal(decoded.view(torch.int16), decode_trellis(encoded.trellis, "mcg").view(torch.int16))
        assert torch.equal(stored[f"{name}.suh"], encoded.suh)
        assert torch.equal(stored[f"{name}.svh"], encoded.svh)


def test_same_seed_same_bytes_other_seed_other_bytes(tmp_path: Path, source: Path) -> None:
    plan = plan_quantization(source, 3, {}, "mcg")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_pack(plan, tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_interrupted_quantization_leaves_no_target(tmp_path: Path, source: Path) -> None:
    def stop(name: str, num_weights: int) -> None:
        raise KeyboardInterrupt

    plan = plan_quantization(source, 3, {}, "mcg")
    with pytest.raises(KeyboardInterrupt):
        write_pack(plan, tmp_path / "target", progress=stop)
    assert not (tmp_path / "target").exists()
    write_pack(plan, tmp_path / "target")
    read_inventory(tmp_path / "target").require_sound()
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def refused(source: Path, **changes: object) -> Glm53Error:
    arguments: dict[str, object] = {"bits": 2, "layer_bits": {}, "codebook": "mcg"} | changes
    with pytest.raises(Glm53Error) as caught:
        plan_quantization(source, **arguments)  # type: ignore[arg-type]
    assert caught.value.hint
    return caught.value


def replace_tensors(source: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, source / "model.safetensors")


def test_refused_bits(source: Path) -> None:
    assert refused(source, bits=9).id == "bits-range"
    assert refused(source, layer_bits={1: 0}).id == "bits-range"


def test_refused_layer_without_experts(source: Path) -> None:
    error = refused(source, layer_bits={7: 3})
    assert error.id == "layer-bits"
    assert "0, 1" in error.expected


def test_refused_quantized_checkpoint(tmp_path: Path, source: Path) -> None:
    write_pack(plan_quantization(source, 3, {}, "mcg"), tmp_path / "target")
    assert refused(tmp_path / "target").id == "already-quantized"


def test_refused_stacked_experts(source: Path) -> None:
    replace_tensors(source, {"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(2, 256, 128)})
    error = refused(source)
    assert error.id == "no-experts"
    assert "gate_up_proj, all experts in one tensor" in error.found


def test_refused_no_experts(source: Path) -> None:
    replace_tensors(source, {"model.norm.weight": torch.zeros(2)})
    assert refused(source).id == "no-experts"


def test_refused_width_off_the_hadamard_block(source: Path) -> None:
    replace_tensors(source, {"model.layers.0.mlp.experts.0.gate_proj.weight": torch.zeros(64, 128)})
    error = refused(source)
    assert error.id == "shape-hadamard"
    assert "experts.0.gate_proj.weight" in error.what


def test_refused_weights_that_are_not_float(source: Path) -> None:
    name = "model.layers.0.mlp.experts.0.gate_proj.weight"
    replace_tensors(source, {name: torch.zeros(128, 128, dtype=torch.int8)})
    assert refused(source).id == "tensor-shape"


def test_refused_missing_shard(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "two", shards=2)
    sorted(source.glob("*.safetensors"))[1].unlink()
    assert refused(source).id == "shard-missing"


def test_refused_target_in_use(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes.txt").write_text("keep me")
    with pytest.raises(PackError, match="is not an empty folder"):
        write_pack(plan_quantization(source, 3, {}, "mcg"), target)
    assert (target / "notes.txt").read_text() == "keep me"


def test_refused_target_that_is_a_file(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep me")
    with pytest.raises(PackError, match="is not an empty folder"):
        write_pack(plan_quantization(source, 3, {}, "mcg"), target)
    assert target.read_text() == "keep me"


def test_empty_working_directory_is_a_target(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write_pack(plan_quantization(source, 3, {}, "mcg"), Path())
    read_inventory(tmp_path / "here").require_sound()


def test_refused_weight_that_is_not_finite_is_named(tmp_path: Path, source: Path) -> None:
    name = "model.layers.1.mlp.experts.0.up_proj.weight"
    tensors = load_file(source / "model.safetensors")
    tensors[name][3, 5] = torch.nan
    replace_tensors(source, tensors)
    with pytest.raises(FormatError, match=name) as caught:
        write_pack(plan_quantization(source, 3, {}, "mcg"), tmp_path / "target")
    assert caught.value.id == "weight-finite"
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_refused_expert_with_bias_or_missing(source: Path) -> None:
    tensors = load_file(source / "model.safetensors")
    replace_tensors(source, tensors | {"model.layers.0.mlp.experts.0.up_proj.bias": torch.zeros(WIDTH)})
    assert refused(source).id == "bias-unsupported"
    del tensors["model.layers.0.mlp.experts.0.up_proj.weight"]
    replace_tensors(source, tensors)
    assert refused(source).id == "expert-missing"


def test_layer_bits_list() -> None:
    assert parse_layer_bits("") == {}
    assert parse_layer_bits("3=4, 5=3") == {3: 4, 5: 3}
    for text in ("3", "3=x", "x=3", "3=4,3=5", "3:4"):
        with pytest.raises(FormatError, match="--layer-bits has the entry"):
            parse_layer_bits(text)


def test_command_writes_a_pack_and_prints_its_folder(tmp_path: Path, source: Path) -> None:
    target = tmp_path / "target"
    result = CliRunner().invoke(
        application(), ["quantize", str(source), str(target), "--bits", "3", "--layer-bits", "1=4"]
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(target)
    read_inventory(target).require_sound()
