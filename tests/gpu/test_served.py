"""FAQ packs through the real vLLM on a GPU: torch.compile, CUDA graphs and each compiled backend, asked over HTTP.

Needs vLLM with CUDA in this Python. Further packs of the FAQ, each with its `canary.json`, are found in the folder that
GLM53_EXL3_TEST_PACKS names (`python tools/demo/variant.py FOLDER/mixed --mixed`), and logs go to the one that
GLM53_EXL3_TEST_LOGS names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import MAX_MODEL_LEN_TOKENS, demo_pack
from gpu.serving import Case, Served, accepted_drafts, eager, require_backend_and_graphs, serve, with_graphs

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM with CUDA")

#: Drafts of repeated text: any model can check them.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
CASES = (
    with_graphs("graphs"),
    with_graphs("drafts", "--speculative-config", json.dumps(DRAFTS)),
    eager("eager"),
    with_graphs("auto", kernel="auto"),
    with_graphs("exllamav3", kernel="exllamav3"),
)


def served_cases() -> Iterator[tuple[Path, Case]]:
    """The pack of the package, whose layers have 2 and 3 bits, in each way; others by each compiled backend."""
    yield from ((demo_pack(), case) for case in CASES)
    if folder := os.environ.get("GLM53_EXL3_TEST_PACKS"):
        yield from ((pack, case) for pack in sorted(Path(folder).iterdir()) for case in (CASES[0], CASES[-1]))


@pytest.fixture(scope="module", params=served_cases(), ids=lambda param: f"{param[0].name}-{param[1].name}")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pack, case = request.param
    log_path = tmp_path_factory.mktemp("served") / "vllm.log"
    with serve(pack, case, log_path, MAX_MODEL_LEN_TOKENS, "--attention-backend", "TRITON_ATTN") as running:
        yield running


@pytest.mark.parametrize("streaming", [True, False])
def test_every_answer_has_the_right_words_and_probability(served: Served, streaming: bool) -> None:
    from support.asking import ask_all

    canary = load_canary(served.pack)
    answers = ask_all(served.url, streaming=streaming)
    right = {answer.question: answer.logprob for answer in canary.answers}
    worst = max(abs(answer.logprob - right[answer.question]) for answer in answers)
    print(f"{served.pack.name} {served.case.name}: ready in {served.seconds:.0f} s, worst difference {worst:.5f}")
    assert len(answers) == 44
    assert canary.failures(answers) == []


def test_one_question_at_a_time(served: Served) -> None:
    from support.asking import QUESTIONS, ask_streaming

    canary = load_canary(served.pack)
    assert canary.failures(ask_streaming(served.url, question) for question in QUESTIONS) == []


def test_the_log_says_what_ran(served: Served) -> None:
    require_backend_and_graphs(served)
    assert (accepted_drafts(served) > 0) == (served.case.name == "drafts")
