"""Bytes of a pack by kind, against figures that were worked out by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.pack.census import KINDS, LayerRange, census, layer_ranges
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.pack.serving import verdicts
from glm53_exl3.plan.sources import expert_layers
from support.packs import PackRecipe, edit_config, edit_tensors, linear, write_pack
from support.synthetic_pack import write_synthetic_pack

HIDDEN, WIDTH, EXPERTS = 4096, 2048, 288
#: Two bits a weight, 16-bit scales on both sides, a marker.
EXPERT_BYTES = 3 * (HIDDEN * WIDTH // 4 + 2 * (HIDDEN + WIDTH) + 4)


@pytest.fixture(scope="module")
def inventory(full_pack: Path) -> Inventory:
    return read_inventory(full_pack)


def test_every_byte_counts_once(inventory: Inventory) -> None:
    counted = census(inventory)
    assert sum(counted.bytes_by_kind.values()) == counted.total_bytes == 97_708_997_436
    assert counted.resident_bytes + counted.mtp_bytes == counted.total_bytes
    assert counted.mtp_bytes == counted.bytes_by_kind["mtp"]
    assert list(counted.bytes_by_kind) == [kind for kind in KINDS if kind in counted.bytes_by_kind]
    assert counted.num_tensors == 150_226


def test_kinds_of_the_full_pack(inventory: Inventory) -> None:
    counted = census(inventory).bytes_by_kind
    assert EXPERT_BYTES == 6_328_332
    assert counted["routed_experts"] == 42 * EXPERTS * EXPERT_BYTES
    assert counted["shared_experts"] == 42 * 3 * HIDDEN * WIDTH * 2
    assert counted["dense_mlp"] == 3 * 3 * HIDDEN * 12_288 * 2
    assert counted["lm_head"] == counted["embeddings"] == 154_880 * HIDDEN * 2
    assert counted["router"] == 42 * (EXPERTS * HIDDEN + EXPERTS) * 2
    # Worked out elsewhere for the same geometry, in GB.
    assert counted["kda"] / 1e9 == pytest.approx(9.37, abs=0.01)
    assert (counted["mla"] + counted["indexer"]) / 1e9 == pytest.approx(2.75, abs=0.01)
    assert "other" not in counted
    assert "attention" not in counted


def test_a_token_reads_its_experts_a_row_of_embeddings_and_all_else_once(inventory: Inventory) -> None:
    counted = census(inventory)
    active = counted.active_bytes_by_kind
    assert active["routed_experts"] == 42 * 8 * EXPERT_BYTES
    assert active["embeddings"] == HIDDEN * 2
    assert not {"vision", "mtp"} & active.keys()
    untouched = ("shared_experts", "dense_mlp", "router", "kda", "mla", "indexer", "norms", "lm_head")
    assert {kind: active[kind] for kind in untouched} == {kind: counted.bytes_by_kind[kind] for kind in untouched}
    assert counted.active_bytes_per_token == sum(active.values())


def test_a_draft_pass_reads_the_mtp_layer_and_the_output_head(inventory: Inventory) -> None:
    counted = census(inventory)
    idle = (EXPERTS - 8) * EXPERT_BYTES
    assert counted.mtp_active_bytes == counted.mtp_bytes - idle + counted.bytes_by_kind["lm_head"]


def test_weights_are_those_of_the_unquantized_model(inventory: Inventory) -> None:
    counted = census(inventory)
    experts = 43 * EXPERTS * 3 * HIDDEN * WIDTH
    assert counted.num_weights == experts + (counted.total_bytes - 43 * EXPERTS * EXPERT_BYTES) // 2
    assert counted.exl3_bits_per_weight == pytest.approx(8 * EXPERT_BYTES / (3 * HIDDEN * WIDTH))


def test_layers_of_a_mixed_pack_are_shown_in_ranges(tmp_path: Path) -> None:
    ranges = layer_ranges(read_inventory(write_synthetic_pack(tmp_path / "mixed", mixed=True)))
    bits = {(entry.first, entry.last): entry.bits[0] for entry in ranges}
    assert bits == {
        (3, 23): 2, (24, 24): 3, (25, 26): 2, (27, 27): 3, (28, 34): 2, (35, 35): 3,
        (36, 36): 2, (37, 37): 3, (38, 41): 2, (42, 42): 3, (43, 44): 2, (45, 45): 3,
    }  # fmt: skip
    assert ranges[-1] == LayerRange(45, 45, (3, 3, 3), "mcg", True)


def test_demo_pack_has_plain_attention_and_no_mtp() -> None:
    counted = census(read_inventory(demo_pack()))
    assert set(counted.bytes_by_kind) == {
        "routed_experts", "shared_experts", "dense_mlp", "router", "attention", "norms", "embeddings", "lm_head",
    }  # fmt: skip
    assert (counted.mtp_bytes, counted.mtp_active_bytes) == (0, 0)
    assert counted.active_bytes_by_kind["routed_experts"] * 4 == counted.bytes_by_kind["routed_experts"]


def test_runtimes_and_kernels_of_the_full_pack(inventory: Inventory) -> None:
    assert {verdict.name: verdict.able for verdict in verdicts(inventory)} == {
        "fork": True,
        "upstream": True,
        "reference": True,
        "native": True,
        "exllamav3": True,
    }


def test_3inst_is_for_the_native_kernels_and_the_reference(tmp_path: Path) -> None:
    stated = {"quant_method": "exl3", "bits": 2, "codebook": "3inst"}
    pack = write_pack(tmp_path, PackRecipe(bits={1: 2}, stated=stated, codebook="3inst"))
    judged = {verdict.name: verdict for verdict in verdicts(read_inventory(pack))}
    assert judged["reference"].able
    assert judged["native"].able
    assert not judged["exllamav3"].able
    assert "layer 1 has the codebook 3inst" in judged["exllamav3"].reasons[0]


def test_linear_outside_the_experts_keeps_every_runtime_from_serving(tmp_path: Path) -> None:
    import numpy as np

    recipe = PackRecipe()
    pack = write_pack(tmp_path, recipe)
    name = "model.layers.1.self_attn.q_proj"
    edit_tensors(pack, lambda tensors: tensors.update(linear(np.random.default_rng(0), name, 256, 256, 4, recipe)))
    for verdict in verdicts(read_inventory(pack)):
        assert verdict.able is (verdict.kind == "kernel")
        assert verdict.kind == "kernel" or name in verdict.reasons[0]


def run_inspect(pack: Path, *options: str) -> subprocess.CompletedProcess[str]:
    code = "from glm53_exl3.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, "inspect", str(pack), *options], capture_output=True, text=True)


def test_command_prints_tables(tmp_path: Path) -> None:
    result = run_inspect(write_pack(tmp_path, PackRecipe(bits={1: (2, 3, 4), 2: 2}, stated={"quant_method": "exl3"})))
    assert result.returncode == 0
    assert result.stderr == ""
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "2", "3", "4", "mcg"] in rows
    assert ["2", "2", "2", "2", "mcg"] in rows
    assert rows[0] == ["Glm4MoeForCausalLM"]


def test_command_prints_json_and_warns_of_faults(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, PackRecipe())
    report = json.loads(run_inspect(pack, "--json").stdout)
    assert report["exl3_layers"] == [
        {"first": 1, "last": 1, "mtp": False, "codebook": "mcg", "bits": {"gate": 2, "up": 2, "down": 2}},
        {"first": 2, "last": 2, "mtp": False, "codebook": "mcg", "bits": {"gate": 3, "up": 3, "down": 3}},
    ]
    assert sum(report["bytes_by_kind"].values()) == report["total_bytes"]
    assert report["faults"] == 0
    edit_config(pack, lambda stated: stated.update(layer_bits={"2": 4}))
    result = run_inspect(pack)
    assert result.returncode == 0
    assert "the pack has 1 faults: glm53-exl3 verify" in result.stderr


def test_experts_of_different_bits_are_shown_and_judged(tmp_path: Path) -> None:
    recipe = PackRecipe(bits={1: [(2, 3, 4), (2, 5, 4), (2, 3, 4), (2, 3, 4)]}, stated={"quant_method": "exl3"})
    pack = write_pack(tmp_path, recipe)
    inventory = read_inventory(pack)
    assert layer_ranges(inventory) == [LayerRange(1, 1, (2, (3, 5), 4), "mcg", False)]
    judged = {verdict.name: verdict for verdict in verdicts(inventory)}
    assert judged["native"].able
    assert not judged["exllamav3"].able
    assert "experts of different bits" in judged["exllamav3"].reasons[0]
    done = run_inspect(pack)
    assert re.search(r"^1 +2 +3\+5 +4 +mcg", done.stdout, re.MULTILINE), done.stdout + done.stderr
    layer = next(iter(inventory.layers.values()))
    stored = sum(tensor.num_bytes for tensor in inventory.tensors.values() if not tensor.name.endswith(".mcg"))
    assert expert_layers(inventory)[0].packed_bytes == stored
    assert layer.rates == ((2,), (3, 5), (4,))
