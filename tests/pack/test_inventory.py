"""The inventory: what a sound pack says, and every fault by name."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from glm53_exl3.errors import FormatError, Glm53Error, PackError
from glm53_exl3.pack.files import holds_trellis
from glm53_exl3.pack.inventory import read_inventory
from support.packs import MCG, PackRecipe, edit_config, edit_tensors, write_pack

GATE = "model.layers.1.mlp.experts.3.gate_proj"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pack(tmp_path / "pack", PackRecipe())


def fault(pack: Path) -> Glm53Error:
    """The worst fault of a pack; fails when it is sound."""
    with pytest.raises(Glm53Error) as caught:
        read_inventory(pack).require_sound()
    assert caught.value.hint
    return caught.value


def test_inventory_sound_pack_knows_bits_codebook_and_shapes(pack: Path) -> None:
    inventory = read_inventory(pack)
    assert inventory.faults == ()
    assert len(inventory.modules) == 2 * 4 * 3
    layers = {layer.layer: layer for layer in inventory.layers.values()}
    assert layers[1].bits == (2, 2, 2)
    assert layers[2].bits == (3, 3, 3)
    assert layers[1].num_experts == 4
    down = layers[2].projections["down_proj"]
    assert (down.in_features, down.out_features, down.codebook) == (128, 256, "mcg")
    assert layers[1].tensor_name(3, "gate_proj", "suh") == f"{GATE}.suh"


def test_inventory_reads_no_weights(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    os_read = os.read

    def counting_read(descriptor: int, size: int) -> bytes:
        nonlocal read
        data = os_read(descriptor, size)
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".safetensors":
            read += len(data)
        return data

    monkeypatch.setattr(os, "read", counting_read)
    read_inventory(pack)
    headers = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in pack.glob("*.safetensors"))
    assert read == headers


def test_inventory_bits_differ_between_projections(tmp_path: Path) -> None:
    recipe = PackRecipe(bits={1: (2, 3, 4)}, stated={"quant_method": "exl3"})
    layer = next(iter(read_inventory(write_pack(tmp_path, recipe)).layers.values()))
    assert layer.bits == (2, 3, 4)


BY_EXPERT = PackRecipe(bits={1: [(2, 3, 4), (2, 3, 6), (2, 3, 4), (2, 5, 4)]}, stated={"quant_method": "exl3"})


def test_inventory_bits_differ_between_experts(tmp_path: Path) -> None:
    inventory = read_inventory(write_pack(tmp_path, BY_EXPERT))
    inventory.require_sound()
    layer = next(iter(inventory.layers.values()))
    assert layer.bits == (2, 3, 4)
    assert layer.rates == ((2,), (3, 5), (4, 6))
    assert layer.is_mixed
    assert layer.projections["gate_proj"].expert_bits == ()
    assert layer.projections["down_proj"].expert_bits == (4, 6, 4, 4)
    assert [layer.projections["up_proj"].bits_of(expert) for expert in range(4)] == [3, 3, 3, 5]


def test_experts_that_differ_contradict_one_stated_rate(tmp_path: Path) -> None:
    stated = {"quant_method": "exl3", "bits": 2}
    recipe = PackRecipe(bits={1: [2, 2, 5, 2]}, stated=stated)
    faults = read_inventory(write_pack(tmp_path, recipe)).faults
    assert {fault.id for fault in faults} == {"bits-by-expert"}
    assert len(faults) == 3
    assert "model.layers.1.mlp.experts.2.gate_proj.trellis has another bit rate" in faults[0].what
    assert "quantization_config.bits says 2 for all" in faults[0].what
    assert (faults[0].expected, faults[0].found) == ("2 bits", "5 bits")
    assert "take bits and layer_bits out of its quantization_config" in faults[0].hint


@pytest.mark.parametrize("marker_shape", [(), (1,)])
@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
def test_inventory_codebook_from_markers(tmp_path: Path, codebook: str, marker_shape: tuple[int, ...]) -> None:
    stated = {"quant_method": "exl3", "bits": 2, "codebook": codebook}
    recipe = PackRecipe(bits={0: 2}, stated=stated, codebook=codebook, marker_shape=marker_shape)
    inventory = read_inventory(write_pack(tmp_path, recipe))
    assert {module.codebook for module in inventory.modules.values()} == {codebook}


def test_inventory_average_bits_are_no_contradiction(pack: Path) -> None:
    edit_config(pack, lambda stated: (stated.update(bits=2.53), stated.pop("layer_bits")))
    inventory = read_inventory(pack)
    inventory.require_sound()
    assert inventory.stated.average_bits == 2.53
    assert inventory.stated.bits is None


def test_inventory_glm5next_names_with_mtp_layer(tmp_path: Path) -> None:
    recipe = PackRecipe(bits={3: 2, 4: 2, 5: 3}, prefix="model.language_model.layers")
    recipe.stated = {"quant_method": "exl3", "bits": 2, "codebook": "mcg", "layer_bits": {"5": 3}}
    pack = write_pack(tmp_path, recipe)
    text = recipe.config() | {"model_type": "glm5_next_text", "num_hidden_layers": 5, "num_nextn_predict_layers": 1}
    del text["first_k_dense_replace"]
    stated = text.pop("quantization_config")
    config = {"architectures": ["Glm5NextForConditionalGeneration"], "text_config": text, "quantization_config": stated}
    (pack / "config.json").write_text(json.dumps(config))
    inventory = read_inventory(pack)
    inventory.require_sound()
    assert inventory.shape is not None
    assert inventory.shape.moe_layers == (3, 4)
    assert inventory.shape.mtp_layers == (5,)
    assert {layer.layer for layer in inventory.layers.values()} == {3, 4, 5}


def test_inventory_experts_stored_plain_are_listed(pack: Path) -> None:
    recipe = PackRecipe(bits={1: 2, 2: 2, 3: 2}, stated={"quant_method": "exl3", "bits": 2, "codebook": "mcg"})
    write_pack(pack, recipe)
    plain = {
        f"model.layers.3.mlp.experts.{e}.{p}.weight": np.zeros((256, 128), np.float16)
        for e in range(4)
        for p in ("gate_proj", "up_proj", "down_proj")
    }
    edit_tensors(pack, lambda tensors: (tensors.clear(), tensors.update(plain)), shard=-1)
    for surplus in pack.glob("*of-00002*"):
        surplus.unlink()
    inventory = read_inventory(pack)
    inventory.require_sound()
    assert inventory.plain_blocks == {"model.layers.3.mlp.experts": 3}


# Every fault: how to make it, its id, and words its message must have.


def test_fault_truncated_shard(pack: Path) -> None:
    path = sorted(pack.glob("*.safetensors"))[1]
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1000)
    error = fault(pack)
    assert error.id == "shard-truncated"
    assert path.name in error.what
    assert str(size) in error.expected
    assert str(size - 1000) in error.found


@pytest.mark.parametrize("size", [0, 4, 40])
def test_fault_truncated_within_header(pack: Path, size: int) -> None:
    path = sorted(pack.glob("*.safetensors"))[0]
    with path.open("r+b") as file:
        file.truncate(size)
    assert fault(pack).id == "shard-truncated"


def test_fault_bytes_after_the_data(pack: Path) -> None:
    with sorted(pack.glob("*.safetensors"))[0].open("ab") as file:
        file.write(b"\0" * 8)
    assert fault(pack).id == "shard-oversized"


@pytest.mark.parametrize(
    "content",
    [b"<html>not found</html>" + b" " * 100, (20).to_bytes(8, "little") + b"[1, 2, 3, 4, 5, 6, 7" + b"]" * 20],
)
def test_fault_no_safetensors(pack: Path, content: bytes) -> None:
    sorted(pack.glob("*.safetensors"))[0].write_bytes(content)
    assert fault(pack).id == "shard-header"


def test_fault_name_twice_in_one_header(pack: Path) -> None:
    header = (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    )
    path = sorted(pack.glob("*.safetensors"))[0]
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    assert fault(pack).id == "tensor-doubled"


def test_fault_missing_shard(pack: Path) -> None:
    path = sorted(pack.glob("*.safetensors"))[1]
    path.unlink()
    error = fault(pack)
    assert error.id == "shard-missing"
    assert path.name in error.what


def test_fault_tensor_in_two_shards(pack: Path) -> None:
    first, second = sorted(pack.glob("*.safetensors"))
    name = f"{GATE}.trellis"
    save_file(load_file(second) | {name: load_file(first)[name]}, second)
    error = fault(pack)
    assert error.id == "tensor-doubled"
    assert name in error.what
    assert first.name in error.found
    assert second.name in error.found


def test_fault_index_names_another_shard(pack: Path) -> None:
    index = json.loads((pack / "model.safetensors.index.json").read_text())
    index["weight_map"][f"{GATE}.suh"] = "model-00002-of-00002.safetensors"
    (pack / "model.safetensors.index.json").write_text(json.dumps(index))
    error = fault(pack)
    assert error.id == "index-contradiction"
    assert f"{GATE}.suh" in error.what


@pytest.mark.parametrize("suffix", ["trellis", "suh", "svh"])
def test_fault_tensor_missing(pack: Path, suffix: str) -> None:
    edit_tensors(pack, lambda tensors: tensors.pop(f"{GATE}.{suffix}"))
    error = fault(pack)
    assert error.id == "tensor-missing"
    assert f"{GATE}.{suffix}" in error.what


def test_fault_expert_missing(pack: Path) -> None:
    def drop(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if name.startswith(f"{GATE}.")]:
            del tensors[name]

    edit_tensors(pack, drop)
    error = fault(pack)
    assert error.id == "expert-missing"
    assert GATE in error.what


def test_fault_one_expert_too_many(pack: Path) -> None:
    def add(tensors: dict[str, np.ndarray]) -> None:
        for name in [name for name in tensors if ".experts.3." in name]:
            tensors[name.replace(".experts.3.", ".experts.4.")] = tensors[name]

    edit_tensors(pack, add)
    error = fault(pack)
    assert error.id == "expert-surplus"
    assert ".experts.4." in error.what


def test_fault_one_marker_removed(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.pop(f"{GATE}.mcg"))
    error = fault(pack)
    assert error.id == "codebook-mixed"
    assert f"{GATE}.mcg" in error.expected
    assert "3inst" in error.found


def test_fault_every_marker_removed(pack: Path) -> None:
    for shard in range(2):
        edit_tensors(pack, lambda t: [t.pop(n) for n in [n for n in t if n.endswith(".mcg")]], shard)
    error = fault(pack)
    assert error.id == "codebook-contradiction"
    assert "'mcg'" in error.what


def test_fault_markers_of_one_projection_removed(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.pop("codebook"))
    edit_tensors(pack, lambda t: [t.pop(n) for n in [n for n in t if n.endswith("up_proj.mcg")]])
    assert fault(pack).id == "codebook-mixed"


def test_fault_two_markers(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.mul1": np.array(1, np.int32)}))
    assert fault(pack).id == "codebook-ambiguous"


def test_fault_marker_is_no_integer(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.mcg": np.array(MCG, np.float32)}))
    assert fault(pack).id == "tensor-shape"


def test_fault_scale_of_wrong_length(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.suh": np.ones(128, np.float16)}))
    error = fault(pack)
    assert error.id == "tensor-shape"
    assert f"{GATE}.suh" in error.what
    assert error.expected == "F16 [256]"


def test_fault_expert_of_other_bits(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.trellis": np.zeros((16, 8, 48), np.int16)}))
    error = fault(pack)
    assert error.id == "bits-by-expert"
    assert GATE in error.what


def test_fault_half_rate(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.trellis": np.zeros((16, 8, 40), np.int16)}))
    error = fault(pack)
    assert error.id == "trellis-half-rate"
    assert "2.5 bits" in error.what


def test_fault_legacy_signs(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.su": np.zeros(16, np.int16)}))
    assert fault(pack).id == "scales-legacy"


def test_fault_bits_lie(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.update(bits=4))
    error = fault(pack)
    assert error.id == "bits-contradiction"
    assert "quantization_config.bits says 4" in error.what
    assert "experts.0.gate_proj.trellis has 2 bits" in error.what


def test_fault_layer_bits_lie(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.update(layer_bits={"2": 4}))
    error = fault(pack)
    assert error.id == "bits-contradiction"
    assert "layer_bits[2] says 4" in error.what


def test_fault_layer_bits_of_a_layer_without_experts(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.update(layer_bits={"2": 3, "7": 3}))
    error = fault(pack)
    assert error.id == "layer-bits"
    assert "layer 7" in error.what


def test_fault_layer_missing(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (pack / "config.json").write_text(json.dumps(config))
    error = fault(pack)
    assert error.id == "layer-missing"
    assert "layer 3" in error.what


def test_fault_other_model_size(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    config["hidden_size"] = 512
    (pack / "config.json").write_text(json.dumps(config))
    error = fault(pack)
    assert error.id == "tensor-shape"
    assert "512 x 128" in error.expected


def test_fault_quant_method(pack: Path) -> None:
    edit_config(pack, lambda stated: stated.update(quant_method="modelopt"))
    error = fault(pack)
    assert isinstance(error, FormatError)
    assert error.id == "quant-method"
    assert "modelopt" in error.what


def test_fault_no_quantization_config(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    del config["quantization_config"]
    (pack / "config.json").write_text(json.dumps(config))
    assert fault(pack).id == "not-exl3"


def test_quantization_config_beside_config_is_read(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    stated = config.pop("quantization_config")
    (pack / "config.json").write_text(json.dumps(config))
    (pack / "quantization_config.json").write_text(json.dumps(stated))
    read_inventory(pack).require_sound()


def test_fault_no_trellis_at_all(pack: Path) -> None:
    for shard in range(2):
        edit_tensors(pack, lambda t: (t.clear(), t.update({f"x{shard}": np.zeros(1, np.float32)})), shard)  # noqa: B023
    assert fault(pack).id == "not-exl3"


def test_fault_empty_folder(tmp_path: Path) -> None:
    assert fault(tmp_path).id == "file-missing"
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "exl3"}}')
    assert fault(tmp_path).id == "pack-empty"


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_fault_config_is_no_json(pack: Path, text: str) -> None:
    (pack / "config.json").write_text(text)
    assert fault(pack).id == "file-json"


def test_fault_count_is_told(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: (tensors.pop(f"{GATE}.suh"), tensors.pop(f"{GATE[:-9]}up_proj.suh")))
    error = fault(pack)
    assert isinstance(error, PackError)
    assert "more faults" in error.what


def test_holds_trellis(pack: Path, tmp_path: Path) -> None:
    assert holds_trellis(pack)
    (pack / "model.safetensors.index.json").unlink()
    assert holds_trellis(pack)
    shutil.rmtree(pack)
    assert not holds_trellis(pack)
    assert not holds_trellis(tmp_path / "nowhere")


@pytest.mark.parametrize("stated", [{"bits": 2}, {"layer_bits": {"1": 4}}])
def test_fault_bits_that_fit_one_projection_only(tmp_path: Path, stated: dict[str, object]) -> None:
    recipe = PackRecipe(bits={1: (2, 2, 4)}, stated={"quant_method": "exl3", **stated})
    error = fault(write_pack(tmp_path, recipe))
    assert error.id == "bits-contradiction"
    assert "out of its quantization_config" in error.hint


@pytest.mark.parametrize("bits", [float("nan"), float("inf"), -2.5, 99.5])
def test_fault_average_bits_that_are_none(pack: Path, bits: float) -> None:
    edit_config(pack, lambda stated: stated.update(bits=bits))
    assert fault(pack).id == "bits-range"


def test_fault_expert_with_a_bias(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.bias": np.zeros(128, np.float16)}))
    error = fault(pack)
    assert error.id == "bias-unsupported"
    assert f"{GATE}.bias" in error.what


def test_fault_trellis_beside_an_ordinary_weight(pack: Path) -> None:
    edit_tensors(pack, lambda tensors: tensors.update({f"{GATE}.weight": np.zeros((128, 256), np.float16)}))
    error = fault(pack)
    assert error.id == "tensor-doubled"
    assert GATE in error.what


def test_fault_plain_layer_of_one_weight(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (pack / "config.json").write_text(json.dumps(config))
    name = "model.layers.3.mlp.experts.0.gate_proj.weight"
    edit_tensors(pack, lambda tensors: tensors.update({name: np.zeros((128, 256), np.float16)}))
    error = fault(pack)
    assert error.id == "expert-missing"
    assert "model.layers.3.mlp.experts" in error.what


def test_fault_two_blocks_of_one_layer(pack: Path) -> None:
    edit_tensors(pack, lambda t: t.update({n.replace("model.", "mtp.", 1): a for n, a in dict(t).items()}))
    assert fault(pack).id == "layer-ambiguous"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_routed_experts", 10**9),
        ("n_routed_experts", [4]),
        ("num_hidden_layers", "3"),
        ("num_hidden_layers", 3.0),
        ("first_k_dense_replace", "1"),
        ("hidden_size", float("inf")),
        ("moe_intermediate_size", -128),
        ("num_nextn_predict_layers", True),
    ],
)
def test_fault_config_value(pack: Path, key: str, value: object) -> None:
    config = json.loads((pack / "config.json").read_text())
    config[key] = value
    (pack / "config.json").write_text(json.dumps(config))
    error = fault(pack)
    assert error.id == "config-value"
    assert key in error.what


def test_fault_many_experts_missing_is_found_at_once(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    config["n_routed_experts"] = 1_000_000
    (pack / "config.json").write_text(json.dumps(config))
    error = fault(pack)
    assert error.id == "expert-missing"
    assert "experts.4.gate_proj" in error.what
    assert "999995 more" in error.what


@pytest.mark.parametrize("value", [None, [], "x", 5])
def test_config_with_an_odd_text_config_or_architecture_is_read(pack: Path, value: object) -> None:
    config = json.loads((pack / "config.json").read_text())
    (pack / "config.json").write_text(json.dumps(config | {"text_config": value, "architectures": value}))
    read_inventory(pack).require_sound()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "1" * 5000 + "}"])
def test_fault_json_that_python_cannot_hold(pack: Path, text: str) -> None:
    (pack / "config.json").write_text(text)
    assert fault(pack).id == "file-json"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [16.9, 8]},
        {"shape": ["16", "8"]},
        {"shape": [-1]},
        {"data_offsets": [-1, 0]},
        {"data_offsets": [4, 260]},
        {"data_offsets": [0, "256"]},
        {"data_offsets": [0]},
        {"dtype": None, "data_offsets": [True, 256]},
    ],
)
def test_fault_header_entry(pack: Path, change: dict[str, object]) -> None:
    header = json.dumps({"a": {"dtype": "I16", "shape": [16, 8], "data_offsets": [0, 256]} | change}).encode()
    path = sorted(pack.glob("*.safetensors"))[0]
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 256)
    assert fault(pack).id == "shard-header"


def test_fault_two_tensors_in_one_place(pack: Path) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    header = json.dumps({"a": entry, "b": entry}).encode()
    path = sorted(pack.glob("*.safetensors"))[0]
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    assert fault(pack).id == "shard-header"


@pytest.mark.parametrize("shard", ["../other.safetensors", "x" * 5000, ""])
def test_fault_index_names_no_file_of_the_pack(pack: Path, shard: str) -> None:
    index = json.loads((pack / "model.safetensors.index.json").read_text())
    index["weight_map"][f"{GATE}.suh"] = shard
    (pack / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fault(pack).id in ("shard-missing", "index-contradiction")


def test_fault_empty_index(pack: Path) -> None:
    (pack / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert fault(pack).id == "pack-empty"
