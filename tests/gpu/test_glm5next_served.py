"""A small Glm5Next of the FAQ through the real vLLM on a GPU: KDA, K-pool DSA, mHC and EXL3 experts under CUDA graphs.

The expected log-probabilities come from transformers' own forward on the dequantized weights, which shares no code with
vLLM (`tools/demo/glm5next_pack.py`). Needs vLLM with CUDA, its DeepGEMM and TileLang.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import SERVED_NAME, load_faq
from gpu.serving import Served, eager, require_backend_and_graphs, serve, with_graphs

PACK = Path(__file__).parents[1] / "data" / "glm5next-faq"
LONG = Path(__file__).parents[1] / "data" / "glm5next-long.json"
TOOLS = Path(__file__).parents[2] / "tools" / "demo"
MAX_MODEL_LEN = 20480
GENERATED = 8192
PROMPT = 16384

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM with CUDA")


MTP = with_graphs("mtp", "--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1}))
CASES = (with_graphs("graphs"), eager("eager"), MTP)


def with_mtp_layer(folder: Path) -> Path:
    """The pack with an MTP layer, whose drafts nobody trained."""
    sys.path.insert(0, str(TOOLS))
    try:
        from glm5next_mtp import add_mtp_layer
    finally:
        sys.path.remove(str(TOOLS))
    add_mtp_layer(PACK, folder / "glm5next-mtp")
    return folder / "glm5next-mtp"


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    pack = with_mtp_layer(folder) if request.param is MTP else PACK
    with serve(pack, request.param, folder / "vllm.log", MAX_MODEL_LEN, "--no-enable-prefix-caching") as running:
        yield running


def failures(served: Served) -> list[str]:
    from support.asking import ask_all

    return load_canary(served.pack).failures(ask_all(served.url, streaming=True))


def test_every_answer_has_the_right_words_and_probability(served: Served) -> None:
    from support.asking import QUESTIONS, ask_all, ask_streaming

    canary = load_canary(served.pack)
    answers = ask_all(served.url, streaming=True)
    right = {answer.question: answer.logprob for answer in canary.answers}
    worst = max(abs(answer.logprob - right[answer.question]) for answer in answers)
    print(f"{served.case.name}: ready in {served.seconds:.0f} s, worst difference {worst:.5f}")
    assert canary.failures(answers) == []
    assert canary.failures(ask_streaming(served.url, question) for question in QUESTIONS) == []


def test_the_log_says_what_ran(served: Served) -> None:
    require_backend_and_graphs(served)


def long_request(url: str, prompt: list[int], max_tokens: int) -> tuple[int, list[float]]:
    """Number of tokens and their log-probabilities."""
    from glm53_exl3.serve.chat import openai_client

    client = openai_client(url, timeout_seconds=600)
    answer = client.completions.create(
        model=SERVED_NAME,
        prompt=prompt,
        temperature=0,
        max_tokens=max_tokens,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    found = answer.choices[0].logprobs.token_logprobs or []
    return answer.usage.completion_tokens, [value for value in found if value is not None]


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(64, GENERATED), (PROMPT, 64)])
def test_neighbours_of_a_long_request_answer_as_ever(served: Served, prompt_tokens: int, max_tokens: int) -> None:
    """The ground of the K-pool tail: its corruption shows in others' answers, or in NaN."""
    text = json.dumps([[entry.question, entry.answer] for entry in load_faq()]).encode()
    prompt = list((text * (prompt_tokens // len(text) + 1))[:prompt_tokens])
    rounds = 0
    with ThreadPoolExecutor(1) as pool:
        running: Future[tuple[int, list[float]]] = pool.submit(long_request, served.url, prompt, max_tokens)
        while not running.done() or not rounds:
            assert failures(served) == []
            rounds += 1
        count, logprobs = running.result()
    print(f"{served.case.name}: {prompt_tokens} and {max_tokens} tokens beside {rounds} rounds of 44 questions")
    assert count == max_tokens == len(logprobs)
    assert all(math.isfinite(value) for value in logprobs)
    assert failures(served) == []


def prompt_logprobs(url: str, prompt: list[int]) -> list[float]:
    """Log-probability of each token of the prompt but the first."""
    from glm53_exl3.serve.chat import openai_client

    client = openai_client(url, timeout_seconds=600)
    answer = client.completions.create(
        model=SERVED_NAME, prompt=prompt, temperature=0, max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    found = (answer.choices[0].model_extra or {})["prompt_logprobs"]
    return [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], found[1:], strict=True)]


def test_a_long_prompt_has_the_probabilities_of_transformers(served: Served) -> None:
    """From position 2,048 on the indexer chooses what is read; below, everything is."""
    sys.path.insert(0, str(TOOLS))
    try:
        from long_prompt import SAMPLED, distances, load_expected, long_prompt
    finally:
        sys.path.remove(str(TOOLS))
    num_tokens, expected, allowed = load_expected(LONG)
    found = distances(prompt_logprobs(served.url, long_prompt(num_tokens))[::SAMPLED], expected)
    print(f"{served.case.name}: {num_tokens} tokens of a prompt, distances {found}, allowed {allowed}")
    assert found[0] <= allowed[0]
    assert found[1] <= allowed[1]
