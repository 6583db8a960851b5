"""`verify` on a pack of 120 shards with the real header shapes: every way of breaking it is named, and it is fast."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from glm53_exl3.pack.findings import Level
from glm53_exl3.pack.verify import VerifyReport, verify_pack
from support.packs import edit_config, write_json
from support.synthetic_pack import (
    INDEX_FILE,
    MIXED_LAYERS,
    PREFIX,
    Stub,
    change_shard,
    link_pack,
    read_stubs,
    shard_of,
    write_stub_shard,
    write_synthetic_pack,
)

EXPERT = f"{PREFIX}.layers.17.mlp.experts.200.up_proj"
MTP_EXPERT = f"{PREFIX}.layers.45.mlp.experts.287.down_proj"
KDA, MLA, DENSE = (f"{PREFIX}.layers.{layer}" for layer in (8, 7, 1))


@pytest.fixture
def pack(full_pack: Path, tmp_path: Path) -> Path:
    return link_pack(full_pack, tmp_path / "linked")


def change(pack: Path, name: str, **fields: object) -> None:
    """Change one tensor of the pack."""

    def changed(stubs: list[Stub]) -> list[Stub]:
        return [stub._replace(**fields) if stub.name == name else stub for stub in stubs]

    change_shard(shard_of(pack, name), changed)


def drop(pack: Path, *prefixes: str) -> None:
    """Take tensors out of their shards and out of the index."""
    index = json.loads((pack / INDEX_FILE).read_text())["weight_map"]
    for shard in sorted({shard for name, shard in index.items() if name.startswith(prefixes)}):
        change_shard(pack / shard, lambda stubs: [stub for stub in stubs if not stub.name.startswith(prefixes)])


def replace_file(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def truncate(pack: Path) -> None:
    path = shard_of(pack, f"{EXPERT}.suh")
    content_bytes, header = path.stat().st_size, read_stubs(path)
    path.unlink()
    write_stub_shard(path, header)
    os.truncate(path, content_bytes - 1)


def double(pack: Path) -> None:
    other = sorted(pack.glob("*.safetensors"))[100]
    stub = next(stub for stub in read_stubs(shard_of(pack, f"{EXPERT}.suh")) if stub.name == f"{EXPERT}.suh")
    stubs = [*read_stubs(other), stub]
    other.unlink()
    write_stub_shard(other, stubs)


def pipe(pack: Path) -> None:
    path = shard_of(pack, f"{EXPERT}.suh")
    path.unlink()
    os.mkfifo(path)


def wrong_marker(pack: Path) -> None:
    path = shard_of(pack, f"{EXPERT}.mcg")
    stubs = read_stubs(path)
    raw = path.open("rb").read(8)
    start = 8 + int.from_bytes(raw, "little")
    size = path.stat().st_size
    path.unlink()
    write_stub_shard(path, stubs)
    assert path.stat().st_size == size
    position = sum(stub.num_bytes for stub in stubs[: [stub.name for stub in stubs].index(f"{EXPERT}.mcg")])
    with path.open("r+b") as file:
        file.seek(start + position)
        file.write((1).to_bytes(4, "little"))


def edit_index(pack: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((pack / INDEX_FILE).read_text())
    edit(index["weight_map"])
    write_json(pack / INDEX_FILE, index)


def without_index(break_it: Callable[[Path], object]) -> Callable[[Path], None]:
    """Break a pack, then take its index away: what is missing must be noticed all the same."""

    def broken(pack: Path) -> None:
        break_it(pack)
        (pack / INDEX_FILE).unlink()

    return broken


@dataclass(frozen=True)
class Damage:
    """A way of breaking a pack, and what must be said of it: the only fault, its level, and words of its text."""

    make: Callable[[Path], object]
    id: str
    level: Level
    words: str
    count: int = 1


DAMAGES = {
    "shard truncated": Damage(truncate, "shard-truncated", Level.LENGTH, ".safetensors"),
    "shard missing": Damage(
        lambda pack: shard_of(pack, f"{EXPERT}.suh").unlink(), "shard-missing", Level.MISSING, ".safetensors"
    ),
    "shard is a pipe": Damage(pipe, "file-unreadable", Level.MISSING, "a pipe"),
    "shard is a link to nothing": Damage(
        lambda pack: (path := shard_of(pack, f"{EXPERT}.suh"), path.unlink(), path.symlink_to("gone")),
        "file-missing",
        Level.MISSING,
        "a link to a file that is not there",
    ),
    "shard is a link to itself": Damage(
        lambda pack: (path := shard_of(pack, f"{EXPERT}.suh"), path.unlink(), path.symlink_to(path.name)),
        "file-unreadable",
        Level.MISSING,
        "symbolic links",
    ),
    "shard is a pointer of Git LFS": Damage(
        lambda pack: replace_file(
            shard_of(pack, f"{EXPERT}.suh"), b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        ),
        "shard-pointer",
        Level.MISSING,
        "Git LFS",
    ),
    "shard is a web page": Damage(
        lambda pack: replace_file(shard_of(pack, f"{EXPERT}.suh"), b"<html>not found</html>"),
        "shard-header",
        Level.HEADER,
        ".safetensors",
    ),
    "tensor of an expert missing": Damage(
        lambda pack: drop(pack, f"{EXPERT}.svh"), "tensor-missing", Level.TENSOR, f"{EXPERT}.svh"
    ),
    "tensor of the MTP layer missing": Damage(
        lambda pack: drop(pack, f"{MTP_EXPERT}.suh"), "tensor-missing", Level.TENSOR, f"{MTP_EXPERT}.suh"
    ),
    "expert missing": Damage(lambda pack: drop(pack, f"{EXPERT}."), "expert-missing", Level.TENSOR, EXPERT),
    "tensor doubled": Damage(double, "tensor-doubled", Level.TENSOR, f"{EXPERT}.suh"),
    "scale of another dtype": Damage(
        lambda pack: change(pack, f"{EXPERT}.svh", dtype="BF16"), "tensor-shape", Level.SHAPE, f"{EXPERT}.svh"
    ),
    "trellis of another shape": Damage(
        lambda pack: change(pack, f"{EXPERT}.trellis", shape=(256, 128, 48)),
        "bits-by-expert",
        Level.CONTRADICTION,
        EXPERT,
    ),
    "marker lost": Damage(lambda pack: drop(pack, f"{EXPERT}.mcg"), "codebook-mixed", Level.CONTRADICTION, EXPERT),
    "marker of another value": Damage(wrong_marker, "marker-value", Level.SHAPE, f"{EXPERT}.mcg"),
    "layer_bits lies": Damage(
        lambda pack: edit_config(pack, lambda stated: stated.update(layer_bits={"24": 3})),
        "bits-contradiction",
        Level.CONTRADICTION,
        "layers.24.",
    ),
    "index names another shard": Damage(
        lambda pack: edit_index(pack, lambda names: names.update({f"{EXPERT}.suh": names["lm_head.weight"]})),
        "index-contradiction",
        Level.CONTRADICTION,
        f"{EXPERT}.suh",
    ),
    "index names a tensor that is nowhere": Damage(
        lambda pack: edit_index(pack, lambda names: names.update({"model.gone": names["lm_head.weight"]})),
        "index-contradiction",
        Level.CONTRADICTION,
        "model.gone",
    ),
    "index lacks a tensor": Damage(
        lambda pack: edit_index(pack, lambda names: names.pop("lm_head.weight")),
        "index-incomplete",
        Level.CONTRADICTION,
        "lm_head.weight",
    ),
    "router missing": Damage(
        without_index(lambda pack: drop(pack, f"{KDA}.mlp.gate.weight")),
        "tensor-missing",
        Level.TENSOR,
        f"{KDA}.mlp.gate.weight",
    ),
    "correction bias missing": Damage(
        lambda pack: drop(pack, f"{KDA}.mlp.gate.e_score"), "tensor-missing", Level.TENSOR, "e_score_correction_bias"
    ),
    "norm missing": Damage(
        without_index(lambda pack: drop(pack, f"{DENSE}.input_layernorm")),
        "tensor-missing",
        Level.TENSOR,
        f"{DENSE}.input_layernorm.weight",
    ),
    "projection of KDA missing": Damage(
        without_index(lambda pack: drop(pack, f"{KDA}.self_attn.f_b_proj")),
        "tensor-missing",
        Level.TENSOR,
        f"{KDA}.self_attn.f_b_proj.weight",
    ),
    "indexer missing": Damage(
        without_index(lambda pack: drop(pack, f"{MLA}.self_attn.indexer")),
        "tensor-missing",
        Level.TENSOR,
        f"{MLA}.self_attn.indexer",
        count=7,
    ),
    "attention missing": Damage(
        without_index(lambda pack: drop(pack, f"{KDA}.self_attn")), "tensor-missing", Level.TENSOR, f"{KDA}.self_attn"
    ),
    "embeddings missing": Damage(
        without_index(lambda pack: drop(pack, f"{PREFIX}.embed_tokens")), "tensor-missing", Level.TENSOR, "embed_tokens"
    ),
    "output head missing": Damage(
        without_index(lambda pack: drop(pack, "lm_head")), "tensor-missing", Level.TENSOR, "lm_head.weight"
    ),
    "projection of the MTP layer missing": Damage(
        without_index(lambda pack: drop(pack, f"{PREFIX}.layers.45.eh_proj")),
        "tensor-missing",
        Level.TENSOR,
        "layers.45.eh_proj.weight",
    ),
    "block of the vision tower incomplete": Damage(
        without_index(lambda pack: drop(pack, "model.visual.blocks.9.attn.qkv.bias")),
        "tensor-missing",
        Level.TENSOR,
        "model.visual.blocks.9.attn.qkv.bias",
    ),
    "projection of another shape": Damage(
        lambda pack: change(pack, f"{KDA}.self_attn.q_proj.weight", shape=(4096, 4096)),
        "tensor-shape",
        Level.SHAPE,
        f"{KDA}.self_attn.q_proj.weight",
    ),
    "config is no JSON": Damage(
        lambda pack: (pack / "config.json").write_text("{"), "file-json", Level.HEADER, "config.json"
    ),
    "config is a folder": Damage(
        lambda pack: ((pack / "config.json").unlink(), (pack / "config.json").mkdir()),
        "file-unreadable",
        Level.MISSING,
        "config.json",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_the_only_fault_and_named(pack: Path, name: str) -> None:
    damage = DAMAGES[name]
    damage.make(pack)
    report = verify_pack(pack)
    assert [(finding.id, finding.level) for finding in report.faults] == [(damage.id, damage.level)]
    (finding,) = report.faults
    assert len(finding.faults) == damage.count
    assert damage.words in finding.faults[0].what
    assert all(fault.hint for fault in finding.faults)


def test_sound_pack_has_neither_faults_nor_warnings(full_pack: Path) -> None:
    report = verify_pack(full_pack)
    assert (report.faults, report.warnings, report.repair) == ((), (), ())
    assert (report.num_shards, report.num_tensors, report.num_layers) == (120, 150_226, 43)
    assert report.num_bytes == 97_708_997_436


def test_mixed_pack_is_sound_and_its_layers_have_their_bits(tmp_path: Path) -> None:
    from glm53_exl3.pack.inventory import read_inventory

    pack = write_synthetic_pack(tmp_path / "mixed", mixed=True, scattered=True)
    assert verify_pack(pack).faults == ()
    layers = read_inventory(pack).layers.values()
    assert sorted(layer.layer for layer in layers if layer.bits == (3, 3, 3)) == sorted(MIXED_LAYERS)
    assert {layer.bits for layer in layers} == {(2, 2, 2), (3, 3, 3)}


def test_all_faults_are_listed_worst_first(pack: Path) -> None:
    truncate(pack)
    sorted(pack.glob("*.safetensors"))[50].unlink()
    drop(pack, f"{MTP_EXPERT}.suh")
    edit_config(pack, lambda stated: stated.update(layer_bits={"45": 3}))
    (pack / "tokenizer.json").unlink()
    report = verify_pack(pack)
    assert [finding.id for finding in report.faults] == [
        "shard-missing",
        "shard-truncated",
        "tensor-missing",
        "bits-contradiction",
    ]
    assert [finding.id for finding in report.warnings] == ["file-absent"]
    damaged = [file.path for file in report.repair if file.damaged]
    assert damaged == sorted([*report.faults[0].files, *report.faults[1].files])
    assert {file.path for file in report.repair if not file.damaged} >= {"config.json"}
    assert "fetch" in report.repair_command
    assert report.repair_command.endswith("--repair")


def test_what_follows_from_a_missing_shard_is_not_reported_again(pack: Path) -> None:
    for shard in sorted(pack.glob("*.safetensors"))[30:90]:
        shard.unlink()
    report = verify_pack(pack)
    assert [(finding.id, len(finding.faults)) for finding in report.faults] == [("shard-missing", 60)]


def run_python(code: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A run of the interpreter and its seconds by the better clock.

    The wall's clock counts waiting for a core, the processor's a core that is shared.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, min(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def run_verify(pack: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], float]:
    return run_python("from glm53_exl3.cli.main import main; main()", "verify", str(pack), *options)


#: What must be read in any case, by `json` alone, and how long that takes when the machine has nothing else to do.
YARDSTICK = """
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    with path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")))
json.loads(pathlib.Path(sys.argv[1], "model.safetensors.index.json").read_bytes())
"""
YARDSTICK_SECONDS = 0.5


def test_command_takes_less_than_two_seconds(full_pack: Path) -> None:
    taken, yardstick = [], []
    for _ in range(5):
        result, seconds = run_verify(full_pack)
        assert (result.returncode, "sound, 0 warnings" in result.stdout) == (0, True)
        taken.append(seconds)
        yardstick.append(run_python(YARDSTICK, str(full_pack))[1])
    # Other processes slow both down, so a busy machine is given more time; an idle one never is.
    assert min(taken) < 2.0 * max(1.0, min(yardstick) / YARDSTICK_SECONDS), (taken, yardstick)


def test_command_lists_faults_as_text_and_json_and_exits_with_one(pack: Path) -> None:
    drop(pack, f"{EXPERT}.svh", f"{MTP_EXPERT}.suh")
    text, _ = run_verify(pack)
    assert text.returncode == 1
    assert text.stderr == ""
    assert f"error: tensor-missing: {EXPERT}.svh is missing" in text.stdout
    assert f"  and: {MTP_EXPERT}.suh is missing" in text.stdout
    assert "to repair: glm53-exl3 fetch OWNER/REPO --dir" in text.stdout
    assert text.stdout.splitlines()[-1].startswith("2 faults, 0 warnings: 120 shards")
    machine, _ = run_verify(pack, "--json")
    assert machine.returncode == 1
    report = json.loads(machine.stdout)
    assert report["sound"] is False
    assert [(entry["id"], entry["level"], entry["count"]) for entry in report["faults"]] == [
        ("tensor-missing", "tensor", 2)
    ]
    assert report["counts"]["shards"] == 120


def test_report_counts_are_those_of_the_report(full_pack: Path) -> None:
    report: VerifyReport = verify_pack(full_pack)
    assert report.num_faults == 0
    assert any("150226 names" in text for text in report.checked)
    assert any("--hash" in text for text in report.unchecked)
