"""The K-pool tail fix, by behaviour: vLLM's own code as it is, and with each defect put back into it.

One process imports vLLM and tries all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.probes import in_runtime

FOLDER = Path(in_runtime.__file__).parent
#: What needs no model of vLLM.
TRIED = ("mapping", "in-place", "positions", "generic")
TRIALS = """
import importlib, inspect, json, sys, textwrap
sys.path.insert(0, sys.argv[1])
import kpool_tail
indexer = importlib.import_module("vllm.v1.attention.backends.mla.indexer")
hybrid = importlib.import_module("vllm.v1.worker.gpu.model_states.mamba_hybrid")
interface = importlib.import_module("vllm.v1.kv_cache_interface")
found = {"as it is": kpool_tail.examine()}

def trial(name, holder, attribute, value):
    original = holder.__dict__[attribute]
    setattr(holder, attribute, value)
    found[name] = kpool_tail.examine()
    setattr(holder, attribute, original)

def generic(slot_mapping, *arguments, out=None, **named):
    return out.copy_(slot_mapping)

build = indexer.KpoolTailMetadataBuilder.build
def cloning(self, *arguments, **named):
    metadata = build(self, *arguments, **named)
    metadata.slot_mapping = metadata.slot_mapping.clone()
    return metadata

state = hybrid.MambaHybridModelState
source = textwrap.dedent(inspect.getsource(state.prepare_attn))
cut = source.replace("positions=input_batch.positions,", "")
assert cut != source
namespace = dict(vars(hybrid))
exec("from __future__ import annotations\\n" + cut, namespace)
def reached_without(self, *arguments):
    namespace["build_attn_metadata"] = hybrid.build_attn_metadata
    return namespace["prepare_attn"](self, *arguments)

def unknown(self, *arguments):
    raise AttributeError("renamed")

trial("generic rule", indexer, "compute_kpool_tail_slot_mapping", generic)
trial("copied", indexer.KpoolTailMetadataBuilder, "build", cloning)
trial("no positions", state, "prepare_attn", reached_without)
trial("generic switched on", interface.CircularBufferSpec, "uses_slot_mapping", True)
trial("another model state", state, "prepare_attn", unknown)
trial("another builder", indexer, "KpoolTailMetadataBuilder", None)
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, str]]]:
    script = tmp_path_factory.mktemp("kpool") / "trials.py"
    script.write_text(TRIALS)
    done = subprocess.run([sys.executable, str(script), str(FOLDER)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_vllm_of_this_environment_is_right(trials: dict[str, dict[str, dict[str, str]]]) -> None:
    assert {name: trials["as it is"][name] for name in TRIED} == {
        "mapping": {"verdict": "right", "detail": "slots [22, 23, 20, 36] for blocks [5, 5, 5, 9] of 4"},
        "in-place": {"verdict": "right", "detail": "the same memory each step"},
        "positions": {"verdict": "right", "detail": "MambaHybridModelState hands the positions on"},
        "generic": {"verdict": "right", "detail": "CircularBufferSpec.uses_slot_mapping is False"},
    }


@pytest.mark.parametrize(
    ("trial", "wrong"),
    [
        ("generic rule", "mapping"),
        ("copied", "in-place"),
        ("no positions", "positions"),
        ("generic switched on", "generic"),
    ],
)
def test_each_defect_is_seen_and_no_other(trials: dict[str, dict[str, dict[str, str]]], trial: str, wrong: str) -> None:
    assert {name: trials[trial][name]["verdict"] for name in TRIED} == {
        name: "wrong" if name == wrong else "right" for name in TRIED
    }


def test_cache_is_undecided_where_the_model_cannot_be_imported(trials: dict[str, dict[str, dict[str, str]]]) -> None:
    """Here torchvision is missing; tests/patches/test_kpool_tail.py decides both on released trees."""
    for name in ("seed", "drafts"):
        assert trials["as it is"][name]["verdict"] == "undecided"
        assert "torchvision" in trials["as it is"][name]["detail"]


def test_code_that_cannot_be_tried_is_undecided(trials: dict[str, dict[str, dict[str, str]]]) -> None:
    state = trials["another model state"]["positions"]
    assert state == {"verdict": "undecided", "detail": "AttributeError: renamed"}
    builder = trials["another builder"]
    assert {builder["mapping"]["verdict"], builder["in-place"]["verdict"]} == {"undecided"}
    assert builder["positions"]["verdict"] == "right"
