"""Checks of a pack: real files, small or sparse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.pack.manifest import Manifest, ManifestFile, write_manifest
from glm53_exl3.pins import load_pins
from glm53_exl3.probes import pack as checks
from glm53_exl3.probes.environment import check_offline
from glm53_exl3.probes.pack import check_inventory, read_faults, read_pack, read_sizes
from glm53_exl3.probes.preflight import PreflightOptions, run_preflight
from glm53_exl3.probes.result import CheckResult, Status
from glm53_exl3.probes.system import DiskFacts, check_disk
from support.packs import PackRecipe, edit_config, edit_tensors, write_json, write_pack

K2 = load_pins().packs["K2"]
TEMPLATE = "{% if enable_thinking %}<think>{% endif %}{{ messages }}"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A small pack with all that surrounds the tensors."""
    folder = write_pack(tmp_path / "small", PackRecipe())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_json(folder / "generation_config.json", {"temperature": 0.6, "top_p": 0.95})
    return folder


def known_pack(folder: Path, *, shards: int = K2.shards, weight_bytes: int = K2.weight_bytes) -> Path:
    """Sparse shards of the K2 pack: its names and sizes, none of its content."""
    folder.mkdir()
    for number in range(shards):
        with (folder / f"model-{number + 1:05}-of-00120.safetensors").open("wb") as file:
            file.truncate(weight_bytes // shards + (weight_bytes % shards if number == 0 else 0))
    return folder


def judged(folder: Path, *, tensors: bool = True) -> dict[str, CheckResult]:
    facts = read_pack(folder, tensors=tensors)
    return {result.id: result for result in (check(facts) for check in checks.PACK_CHECKS)}


def assert_result(result: CheckResult, status: Status, measured: str, hint: str = "") -> None:
    assert result.status == status
    assert measured in result.measured
    assert hint in result.hint


def manifest(folder: Path, *, complete: bool = True, repository: str = K2.repository) -> Manifest:
    files = tuple(ManifestFile(path.name, path.stat().st_size, None) for path in sorted(folder.iterdir()))
    return Manifest(repository, "main", "a" * 40, "mit", complete, files)


def test_sound_pack_is_ok(pack: Path) -> None:
    found = judged(pack)
    assert {id: result.status for id, result in found.items()} == {
        **dict.fromkeys(found, "ok"),
        "pack-revision": "skip",
    }
    assert found["pack-config"].measured == "Glm4MoeForCausalLM"
    assert found["pack-stamp"].measured == "exl3"
    assert found["pack-sampling"].measured == "temperature 0.6"
    assert_result(check_inventory(read_faults(pack)), "ok", "every expert tensor is there")


def test_absent_folder_is_named_with_the_command_to_fetch(tmp_path: Path) -> None:
    found = judged(tmp_path / "GLM-5.3-Flash-EXL3-K2")
    assert_result(found["pack-present"], "fail", "is not a folder", "glm53-exl3 fetch K2")


def test_folder_without_shards_is_named(tmp_path: Path) -> None:
    assert_result(
        judged(tmp_path)["pack-present"], "fail", "holds no .safetensors shard", "glm53-exl3 fetch OWNER/REPO"
    )


def test_missing_and_broken_config(pack: Path) -> None:
    (pack / "config.json").write_text("{")
    assert_result(judged(pack)["pack-config"], "fail", "config.json cannot be read", "--repair")
    (pack / "config.json").unlink()
    assert_result(judged(pack)["pack-config"], "fail", "config.json is missing", "--repair")


def test_wrong_stamp_on_exl3_experts_gives_the_fix(pack: Path) -> None:
    edit_config(pack, lambda config: config.update(quant_method="modelopt"))
    fix = f'write "quant_method": "exl3" into quantization_config of {pack}/config.json'
    assert_result(judged(pack)["pack-stamp"], "fail", "quant_method is 'modelopt', but the experts are EXL3", fix)
    assert_result(judged(pack, tensors=False)["pack-stamp"], "fail", "quant_method is 'modelopt', not 'exl3'", fix)


def test_stamp_beside_the_config_counts(pack: Path) -> None:
    config = json.loads((pack / "config.json").read_text())
    stamp = config.pop("quantization_config")
    write_json(pack / "config.json", config)
    assert judged(pack)["pack-stamp"].status == "fail"
    write_json(pack / "quantization_config.json", stamp)
    assert judged(pack)["pack-stamp"].status == "ok"


def test_stamp_without_trellis_is_no_pack(pack: Path) -> None:
    for shard in (0, 1):
        edit_tensors(pack, lambda tensors: [tensors.pop(name) for name in list(tensors) if "trellis" in name], shard)
    assert_result(judged(pack)["pack-stamp"], "fail", "exl3, but no tensor is a trellis")
    edit_config(pack, lambda config: config.update(quant_method="fp8"))
    assert_result(
        judged(pack)["pack-stamp"], "fail", "quant_method is 'fp8' and no tensor is a trellis: not an EXL3 pack"
    )


def test_known_pack_is_measured_against_its_pin(tmp_path: Path) -> None:
    folder = known_pack(tmp_path / "GLM-5.3-Flash-EXL3-K2")
    assert_result(judged(folder)["pack-size"], "ok", "120 shards, 97728721536 bytes (91.0 GiB)")
    (folder / "model-00120-of-00120.safetensors").unlink()
    assert_result(judged(folder)["pack-size"], "fail", "119 shards", f"glm53-exl3 fetch K2 --dir {folder} --repair")


def test_mix_pack_has_a_pin_of_its_own(tmp_path: Path) -> None:
    mix = load_pins().packs["K2K3-mix"]
    folder = known_pack(tmp_path / "K2K3-mix", weight_bytes=mix.weight_bytes)
    assert_result(judged(folder)["pack-size"], "ok", "120 shards, 103164539520 bytes (96.1 GiB)")


def test_truncated_shard_of_a_known_pack_is_seen(tmp_path: Path) -> None:
    folder = known_pack(tmp_path / "k2", weight_bytes=K2.weight_bytes - 1)
    assert_result(judged(folder)["pack-size"], "fail", "K2 has 120 shards, 97728721536 bytes")


def test_manifest_names_the_file_that_differs(pack: Path) -> None:
    write_manifest(pack, manifest(pack, repository="someone/else"))
    assert judged(pack)["pack-revision"].measured == "someone/else at aaaaaaaaaaaa"
    assert judged(pack)["pack-size"].status == "ok"
    (pack / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert_result(judged(pack)["pack-size"], "fail", "not as in the manifest: chat_template.jinja", "--repair")


def test_unfinished_download_is_named(pack: Path) -> None:
    write_manifest(pack, manifest(pack, complete=False))
    assert_result(judged(pack)["pack-revision"], "fail", "download not finished", f"--dir {pack} --repair")


def test_another_commit_than_the_pin_is_named(pack: Path) -> None:
    pin = load_pins().packs["DFlash2"]
    write_manifest(pack, manifest(pack, repository=pin.repository))
    assert_result(judged(pack)["pack-revision"], "warn", f"this release was made for {(pin.commit or '')[:12]}")


@pytest.mark.parametrize("stated", ["<think>", [{"name": "default", "template": "<think>"}]])
def test_template_that_always_thinks_is_named(pack: Path, stated: Any) -> None:
    (pack / "chat_template.jinja").unlink()
    write_json(pack / "tokenizer_config.json", {"chat_template": stated})
    assert_result(judged(pack)["pack-chat-template"], "ok", "7 characters")
    assert_result(judged(pack)["pack-thinking"], "warn", "does not read enable_thinking", "--chat-template FILE")


def test_missing_template_fails_a_known_pack_and_warns_otherwise(pack: Path, tmp_path: Path) -> None:
    (pack / "chat_template.jinja").unlink()
    assert_result(judged(pack)["pack-chat-template"], "warn", "chat requests will be refused")
    known = judged(known_pack(tmp_path / "K2"))
    assert_result(
        known["pack-chat-template"], "fail", "chat requests will be refused", f"--dir {tmp_path / 'K2'} --repair"
    )
    assert known["pack-thinking"].status == "skip"


def test_template_without_thoughts_is_ok(pack: Path) -> None:
    (pack / "chat_template.jinja").write_text("{{ messages }}")
    assert_result(judged(pack)["pack-thinking"], "ok", "opens no thought")


@pytest.mark.parametrize(
    ("config", "measured"), [({"temperature": 1.0}, "temperature 1:"), ({}, "temperature 1 (vLLM")]
)
def test_hot_sampling_is_named(pack: Path, config: dict[str, float], measured: str) -> None:
    write_json(pack / "generation_config.json", config)
    assert_result(judged(pack)["pack-sampling"], "warn", measured, "--override-generation-config")


def test_damaged_tensors_are_counted_and_the_first_named(pack: Path) -> None:
    missing = "model.layers.1.mlp.experts.2.up_proj.suh"
    edit_tensors(pack, lambda tensors: tensors.pop(missing))
    edit_tensors(pack, lambda tensors: tensors.pop(missing.replace("layers.1", "layers.2")), shard=1)
    faults = read_faults(pack)
    assert len(faults) > 1
    measured = f"tensor-missing: {faults[0].what} (and {len(faults) - 1} more faults)"
    assert_result(check_inventory(faults), "fail", measured, faults[0].hint)
    assert missing in measured
    assert_result(check_inventory(faults[:1]), "fail", faults[0].what)


def test_unreadable_pack_is_a_fault_of_the_inventory(tmp_path: Path) -> None:
    assert_result(check_inventory(read_faults(tmp_path)), "fail", "file-missing: config.json is missing")


def test_what_is_still_to_be_downloaded_is_compared_with_the_disk(tmp_path: Path) -> None:
    folder = known_pack(tmp_path / "K2", shards=60, weight_bytes=K2.weight_bytes // 2)
    sizes = read_sizes(folder)
    assert (sizes.missing_bytes, sizes.weight_bytes) == (K2.weight_bytes - K2.weight_bytes // 2, K2.weight_bytes)
    short = check_disk(DiskFacts(str(folder), 2**30, sizes.missing_bytes, named=True))
    assert_result(short, "fail", "1.0 GiB free", "free 44.5 GiB")
    assert_result(
        check_disk(DiskFacts(str(folder), 2**36, sizes.missing_bytes, named=True)), "ok", "45.5 GiB to download"
    )
    assert_result(check_disk(DiskFacts(str(folder), None, 1, named=True)), "skip", "free space unknown")


def test_offline_matters_while_the_pack_is_not_here() -> None:
    variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "0"}
    assert_result(
        check_offline(variables, 1), "fail", "HF_HUB_OFFLINE=1, and the pack is not here", "unset HF_HUB_OFFLINE"
    )
    assert_result(check_offline(variables, 0), "ok", "HF_HUB_OFFLINE=1")
    assert_result(check_offline({}, 1), "ok", "off")


def test_fast_reads_no_tensors(pack: Path) -> None:
    for shard in pack.glob("*.safetensors"):
        shard.write_bytes(b"no header")
    report = run_preflight(PreflightOptions(fast=True, pack=pack))
    found = {result.id: result for result in report.results}
    assert found["pack-stamp"].status == "ok"
    assert_result(found["pack-inventory"], "skip", "left out by --fast")
