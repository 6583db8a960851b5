"""`verify` on small packs: the manifest, hashes, pins, what lies beside the shards, and no false alarms."""

import ast
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import glm53_exl3
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import Glm53Error
from glm53_exl3.pack import findings
from glm53_exl3.pack.completeness import model_faults
from glm53_exl3.pack.findings import Level
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.pack.manifest import Manifest, ManifestFile, write_manifest
from glm53_exl3.pack.verify import verify_pack
from support.packs import PackRecipe, edit_tensors, write_json, write_pack

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    directory = write_pack(tmp_path / "pack", PackRecipe())
    write_json(directory / "tokenizer.json", {})
    write_json(directory / "tokenizer_config.json", {"chat_template": "x"})
    write_json(directory / "generation_config.json", {})
    return directory


def manifest_of(pack: Path, *, repository: str = "owner/name", complete: bool = True, hashed: bool = True) -> Manifest:
    files = tuple(
        ManifestFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest() if hashed else None)
        for path in sorted(pack.iterdir())
    )
    return Manifest(repository, "main", COMMIT, "mit", complete, files)


def ids(pack: Path, hashes: bool = False) -> tuple[list[str], list[str]]:
    """Ids of faults and of warnings."""
    report = verify_pack(pack, hashes)
    return [finding.id for finding in report.faults], [finding.id for finding in report.warnings]


def test_pack_of_experts_alone_is_sound_and_the_rest_not_checked(pack: Path) -> None:
    report = verify_pack(pack)
    assert (report.faults, report.warnings) == ((), ())
    assert any(text.startswith("tensors outside the routed experts") for text in report.unchecked)
    assert any("there is no manifest" in text for text in report.unchecked)


def test_demo_pack_is_sound_and_its_other_tensors_are_compared() -> None:
    report = verify_pack(demo_pack())
    assert (report.faults, report.warnings) == ((), ())
    assert model_faults(read_inventory(demo_pack())) == []


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.gate.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias",
        "model.layers.2.mlp.shared_experts.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_demo_pack_without_any_of_its_tensors_is_not_sound(tmp_path: Path, name: str) -> None:
    pack = shutil.copytree(demo_pack(), tmp_path / "pack")
    # Of the same length, so that the header keeps its own; numpy has no bfloat16 to write the tensors anew.
    raw = (pack / "model.safetensors").read_bytes()
    (pack / "model.safetensors").write_bytes(raw.replace(f'"{name}"'.encode(), f'"{"x" * len(name)}"'.encode()))
    faults = verify_pack(pack).faults
    assert [finding.id for finding in faults] == ["tensor-missing"]
    assert name.removeprefix("model.") in faults[0].faults[0].what


def test_every_id_that_a_pack_can_be_refused_with_has_a_level() -> None:
    ids = {
        node.args[0].value
        for folder in ("pack", "format")
        for path in (Path(glm53_exl3.__file__).parent / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.endswith("Error")
        and len(node.args) > 1
        and isinstance(node.args[0], ast.Constant)
    }
    assert {"shard-missing", "bits-range", "file-absent"} <= ids
    # Raised before there is a report, and by tensor parallelism.
    assert ids - findings._LEVELS.keys() == {"pack-missing", "shard-cut"}
    assert findings._LEVELS.keys() <= ids


def test_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Glm53Error) as caught:
        verify_pack(tmp_path / "nowhere")
    assert caught.value.id == "pack-missing"


def test_empty_folder_has_a_fault_and_no_traceback(tmp_path: Path) -> None:
    assert ids(tmp_path) == (["file-missing"], [])


def test_pack_whose_config_is_broken_still_has_its_shards_checked(pack: Path) -> None:
    (pack / "config.json").write_text("[]")
    with sorted(pack.glob("*.safetensors"))[1].open("ab") as file:
        file.write(b"\0")
    assert ids(pack) == (["shard-oversized", "file-json"], [])


def test_manifest_sizes_are_always_compared(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack))
    assert ids(pack) == ([], [])
    path = sorted(pack.glob("*.safetensors"))[0]
    num_bytes = path.stat().st_size
    save_file(load_file(path), path, metadata={"more": "text"})
    report = verify_pack(pack)
    assert [finding.id for finding in report.faults] == ["file-size"]
    assert [(file.path, file.num_bytes, file.damaged) for file in report.repair] == [(path.name, num_bytes, True)]
    assert report.repair_command == f"glm53-exl3 fetch owner/name@{COMMIT} --dir {pack} --repair"


def test_truncated_shard_is_one_fault_although_the_manifest_tells_it_too(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack))
    with sorted(pack.glob("*.safetensors"))[0].open("r+b") as file:
        file.truncate(2000)
    assert ids(pack) == (["shard-truncated"], [])


def test_shard_that_only_the_manifest_knows_is_missed(pack: Path) -> None:
    extra = pack / "extra.safetensors"
    save_file({"x": np.zeros(1, np.float32)}, extra)
    write_manifest(pack, manifest_of(pack))
    extra.unlink()
    assert ids(pack) == (["file-missing"], [])


def test_text_that_was_edited_is_a_warning(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack))
    write_json(pack / "tokenizer_config.json", {"chat_template": "another"})
    assert ids(pack) == ([], ["file-changed"])


def test_fetch_that_did_not_finish_is_a_warning(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack, complete=False))
    assert ids(pack) == ([], ["fetch-incomplete"])


def test_manifest_that_cannot_be_read_is_a_fault(pack: Path) -> None:
    (pack / "glm53-exl3-manifest.json").write_text("{}")
    assert ids(pack) == (["manifest-invalid"], [])


def test_hash_finds_what_nothing_else_does(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack))
    path = sorted(pack.glob("*.safetensors"))[1]
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert ids(pack) == ([], [])
    report = verify_pack(pack, hashes=True)
    assert [(finding.id, finding.level) for finding in report.faults] == [("file-hash", Level.CONTENT)]
    assert report.faults[0].files == (path.name,)
    manifest_bytes = (pack / "glm53-exl3-manifest.json").stat().st_size
    assert report.hashed_bytes == manifest_of(pack).num_bytes - manifest_bytes


def test_hash_of_a_sound_pack_reads_every_byte_and_tells_progress(pack: Path) -> None:
    manifest = manifest_of(pack)
    write_manifest(pack, manifest)
    seen: list[tuple[int, int]] = []
    report = verify_pack(pack, hashes=True, progress=lambda num_bytes, total: seen.append((num_bytes, total)))
    assert report.faults == ()
    assert sum(num_bytes for num_bytes, _ in seen) == manifest.num_bytes
    assert {total for _, total in seen} == {manifest.num_bytes}
    assert not any("--hash" in text for text in report.unchecked)


def test_hash_without_a_manifest_says_where_hashes_come_from(pack: Path) -> None:
    report = verify_pack(pack, hashes=True)
    assert [(finding.id, finding.level) for finding in report.faults] == [("manifest-missing", Level.UNCHECKED)]
    assert "--repair" in report.faults[0].faults[0].hint


def test_files_of_which_the_manifest_has_no_hash_are_counted(pack: Path) -> None:
    manifest = manifest_of(pack, hashed=False)
    write_manifest(pack, manifest)
    report = verify_pack(pack, hashes=True)
    assert report.faults == ()
    assert f"the bytes of {len(manifest.files)} files of which the manifest has no sha256" in report.unchecked


@pytest.mark.parametrize(
    ("remove", "word"),
    [("tokenizer.json", "tokens"), ("generation_config.json", "end"), ("tokenizer_config.json", "tokenizer class")],
)
def test_file_beside_the_shards_that_is_not_there_is_a_warning(pack: Path, remove: str, word: str) -> None:
    (pack / "chat_template.jinja").write_text("x")
    (pack / remove).unlink()
    (warning,) = verify_pack(pack).warnings
    assert (warning.id, warning.files) == ("file-absent", (remove,))
    assert word in warning.faults[0].what


def test_pack_without_a_chat_template_is_a_warning(pack: Path) -> None:
    write_json(pack / "tokenizer_config.json", {})
    (warning,) = verify_pack(pack).warnings
    assert "every chat request will be refused" in warning.faults[0].what


def test_shard_that_the_index_does_not_name_is_a_warning(pack: Path) -> None:
    save_file({"x": np.zeros(1, np.float32)}, pack / "old.safetensors")
    report = verify_pack(pack)
    assert [finding.id for finding in report.warnings] == ["shard-surplus"]
    assert report.warnings[0].faults[0].hint == f"rm {pack / 'old.safetensors'}"


def test_total_size_of_the_index_that_is_not_the_sum_is_a_warning(pack: Path) -> None:
    index = json.loads((pack / "model.safetensors.index.json").read_text())
    write_json(pack / "model.safetensors.index.json", index | {"metadata": {"total_size": 5}})
    assert ids(pack) == ([], ["index-total"])
    total = verify_pack(pack).num_bytes
    write_json(pack / "model.safetensors.index.json", index | {"metadata": {"total_size": float(total)}})
    assert ids(pack) == ([], [])


@pytest.mark.parametrize(
    "parts", [("K2",), ("glm-5.3-flash-exl3-k2",), ("models--vcruz305--GLM-5.3-Flash-EXL3-K2", "x")]
)
def test_known_pack_is_known_by_its_folder_and_must_have_its_size(
    pack: Path, tmp_path: Path, parts: tuple[str]
) -> None:
    folder = tmp_path.joinpath("known", *parts)
    folder.parent.mkdir(parents=True)
    pack.rename(folder)
    (finding,) = verify_pack(folder).faults
    assert finding.id == "pack-size"
    assert finding.faults[0].expected == "120 shards of 97728721536 bytes in all"


def test_known_pack_is_known_by_its_manifest_which_tells_sizes_better(pack: Path) -> None:
    write_manifest(pack, manifest_of(pack, repository="vcruz305/GLM-5.3-Flash-EXL3-K2"))
    report = verify_pack(pack)
    assert report.faults == ()
    assert any("against the pinned K2" in text for text in report.checked)


def test_draft_is_not_exl3_and_need_not_be(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    write_json(draft / "config.json", {"architectures": ["DFlash2DraftModel"]})
    save_file({"x": np.zeros(1, np.float32)}, draft / "model.safetensors")
    write_manifest(draft, manifest_of(draft, repository="incoai/GLM-5.3-Flash-DFlash2"))
    report = verify_pack(draft)
    assert report.faults == ()
    assert "tensors by name: a draft model is not EXL3" in report.unchecked
    (draft / "glm53-exl3-manifest.json").unlink()
    assert ids(draft) == (["not-exl3"], [])


# Layers that differ on purpose are no faults.

NORM, PROJECTION = np.zeros(256, np.float16), np.zeros((64, 256), np.float16)


def with_model(pack: Path, names: Callable[[int], list[str]], num_layers: int = 8) -> list[Glm53Error]:
    """Faults of a pack with these tensors in each layer; the experts are in layers 1 and 2."""
    tensors = {f"model.layers.{n}.{name}": PROJECTION for n in range(num_layers) for name in names(n)}
    tensors |= {f"model.layers.{n}.mlp.gate.weight": np.zeros((4, 256), np.float16) for n in (1, 2)}
    tensors |= {f"model.layers.{n}.mlp.gate.e_score_correction_bias": np.zeros(4, np.float32) for n in (1, 2)}
    tensors["model.layers.0.mlp.up_proj.weight"] = PROJECTION
    tensors |= {"model.embed_tokens.weight": PROJECTION, "model.norm.weight": NORM, "lm_head.weight": PROJECTION}
    edit_tensors(pack, lambda stored: stored.update(tensors))
    found = model_faults(read_inventory(pack))
    assert found is not None
    return found


def missing(found: list[Glm53Error]) -> list[str]:
    assert {fault.id for fault in found} <= {"tensor-missing"}
    return [fault.what.removesuffix(" is missing") for fault in found]


def test_two_kinds_of_attention_are_no_fault(pack: Path) -> None:
    linear, full = [f"linear_attn.{n}.weight" for n in "abcd"], [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    assert missing(with_model(pack, lambda n: full if n % 4 == 3 else linear)) == []


def test_extra_tensor_of_few_layers_is_no_fault(pack: Path) -> None:
    usual = [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    assert missing(with_model(pack, lambda n: [*usual, *(["self_attn.sink.weight"] if n < 2 else [])])) == []


def test_indexers_of_some_layers_are_no_fault_when_config_says_that_layers_share_them(pack: Path) -> None:
    usual = [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    indexer = [f"self_attn.indexer.{n}.weight" for n in "ab"]

    def names(layer: int) -> list[str]:
        return [*usual, *(indexer if layer % 4 else [])]

    assert missing(with_model(pack, names)) == [
        f"model.layers.{n}.self_attn.indexer.{part}.weight" for part in "ab" for n in (0, 4)
    ]
    config = json.loads((pack / "config.json").read_text())
    write_json(pack / "config.json", config | {"index_topk_pattern": "SFFFSFFF"})
    assert missing(with_model(pack, names)) == []


def test_half_of_a_kind_lost_is_noticed(pack: Path) -> None:
    usual = [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    assert missing(with_model(pack, lambda n: usual[:1] if n == 5 else usual)) == [
        f"model.layers.5.self_attn.{n}_proj.weight" for n in "kov"
    ]


def test_tied_output_head_need_not_be_there(pack: Path) -> None:
    usual = [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    with_model(pack, lambda n: usual)
    edit_tensors(pack, lambda stored: stored.pop("lm_head.weight"))
    assert missing(model_faults(read_inventory(pack)) or []) == ["lm_head.weight"]
    config = json.loads((pack / "config.json").read_text())
    write_json(pack / "config.json", config | {"tie_word_embeddings": True})
    assert model_faults(read_inventory(pack)) == []


def test_mtp_layer_that_was_left_out_is_a_warning(pack: Path) -> None:
    usual = [f"self_attn.{n}_proj.weight" for n in "qkvo"]
    with_model(pack, lambda n: usual, num_layers=3)
    config = json.loads((pack / "config.json").read_text())
    write_json(pack / "config.json", config | {"num_nextn_predict_layers": 1})
    assert ids(pack) == ([], ["mtp-absent"])
    edit_tensors(pack, lambda stored: stored.update({"model.layers.3.enorm.weight": NORM}))
    report = verify_pack(pack)
    whats = [fault.what for finding in report.faults for fault in finding.faults]
    assert [finding.id for finding in report.faults] == ["tensor-missing"]
    assert {"model.layers.3.eh_proj.weight is missing", "model.layers.3.mlp.experts.0 is missing"} <= set(whats)
