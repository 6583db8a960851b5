"""The small Glm5Next of the FAQ: sound, and worth what its canary says, by transformers' own forward on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glm53_exl3.demo.canary import Answer, load_canary
from glm53_exl3.demo.faq import load_faq
from glm53_exl3.pack.inventory import read_inventory

ROOT = Path(__file__).parents[2]
PACK = ROOT / "tests" / "data" / "glm5next-faq"
LONG = ROOT / "tests" / "data" / "glm5next-long.json"
LOAD = ROOT / "tests" / "engine" / "glm5next" / "load_pack.py"
SOME = 8


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    """The modules of tools/demo, which import each other by name."""
    before = set(sys.modules)
    sys.path.insert(0, str(ROOT / "tools" / "demo"))
    import glm5next_model
    import train

    yield glm5next_model, train
    sys.path.remove(str(ROOT / "tools" / "demo"))
    for name in set(sys.modules) - before:
        if str(ROOT / "tools" / "demo") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture(scope="module")
def model(tools: Any) -> Any:
    return tools[0].load(PACK)


def given(tools: Any, model: Any) -> list[Answer]:
    """What the model thinks of some of the right answers."""
    found = []
    for entry in load_faq()[:SOME]:
        item = tools[1].sample(entry.question, entry.answer)
        found.append(Answer(entry.question, entry.answer, float(model.logprobs(item.prompt, item.answer).sum())))
    return found


def test_the_pack_is_sound_and_small() -> None:
    inventory = read_inventory(PACK)
    inventory.require_sound()
    assert {module.bits for module in inventory.modules.values()} == {2, 3}
    assert sum(path.stat().st_size for path in PACK.iterdir()) < 4 * 10**6


def test_it_has_the_layers_of_glm_53_flash() -> None:
    config = json.loads((PACK / "config.json").read_text())
    assert config["architectures"] == ["Glm5NextForCausalLM"]
    config = config["text_config"]
    assert set(config["layer_types"]) == {"linear_attention", "indexed_attention"}
    assert (config["index_kpool"], config["hc_mult"], config["mla_use_nope"]) == (4, 4, True)


def test_the_canary_is_what_transformers_computes(tools: Any, model: Any) -> None:
    canary = load_canary(PACK)
    assert [entry.question for entry in load_faq()] == [answer.question for answer in canary.answers]
    assert 0 < canary.tolerance < 0.2
    for one, right in zip(given(tools, model), canary.answers[:SOME], strict=True):
        assert one.logprob == pytest.approx(right.logprob, abs=1e-3)


@pytest.mark.parametrize("layer", [1, 2])
def test_a_layer_whose_experts_are_silent_fails(tools: Any, model: Any, layer: int) -> None:
    down = model.model.layers[layer].mlp.experts.down_proj
    kept = down.detach().clone()
    with torch.no_grad():
        down.zero_()
        wrong = load_canary(PACK).failures(given(tools, model))
        down.copy_(kept)
    assert len(wrong) == SOME


def test_the_long_prompt_has_the_probabilities_that_transformers_computes(tools: Any, model: Any) -> None:
    from long_prompt import INDEX_TOPK, SAMPLED, load_expected, long_prompt

    num_tokens, expected, _ = load_expected(LONG)
    assert len(expected) == len(range(1, num_tokens, SAMPLED))
    # Attention is causal: the start of the prompt says the same alone. Past INDEX_TOPK the indexer has chosen.
    prompt = long_prompt(INDEX_TOPK + 1024)
    tokens, positions = torch.tensor([prompt]), torch.arange(1, len(prompt), SAMPLED)
    with torch.inference_mode():
        logprobs = model(tokens, positions - 1).log_softmax(-1).gather(1, tokens[0, positions, None])[:, 0]
    apart = (logprobs - torch.tensor(expected[: len(logprobs)])).abs()
    assert float(apart.median()) < 1e-3
    assert float(apart.clamp(max=1).mean()) < 2e-3


def test_the_long_prompt_tells_wrong_pools_from_rounding(tools: Any) -> None:
    from long_prompt import distances, load_expected

    _, expected, allowed = load_expected(LONG)
    assert json.loads(LONG.read_text())["worst_pools"] > allowed[1]
    assert distances(expected, expected) == (0, 0)
    assert distances([value - 2 for value in expected], expected) == (1, 1)


@pytest.mark.timeout(300)
def test_vllms_own_classes_load_every_tensor_of_it_and_of_its_mtp_layer(tools: Any, tmp_path: Path) -> None:
    from glm5next_mtp import add_mtp_layer

    add_mtp_layer(PACK, tmp_path / "pack")
    read_inventory(tmp_path / "pack").require_sound()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GLM53_EXL3_")}
    environment |= {"VLLM_CACHE_ROOT": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(LOAD), str(tmp_path / "pack"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-8000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["Glm5NextForCausalLM"]["left_out"] == []
    # Shared with the model.
    assert report["Glm5NextMTP"]["left_out"] == ["model.embed_tokens.weight"]
