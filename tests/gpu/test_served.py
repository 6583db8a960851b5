"""FAQ packs through the real vLLM on a GPU: torch.compile, CUDA graphs and the exllamav3 backend, asked over HTTP.

Needs vLLM with CUDA in this Python. Further packs of the FAQ, each with its `canary.json`, are found in the folder that
GLM53_EXL3_TEST_PACKS names (`python tools/demo/variant.py FOLDER/k2 --bits 2`), and logs go to the one that
GLM53_EXL3_TEST_LOGS names.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import MAX_MODEL_LEN_TOKENS, SERVED_NAME, demo_pack
from glm53_exl3.serve.argv import ServerCommand
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.process import ServerProcess

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM with CUDA")

START_SECONDS = 240
SIZES = (1, 2, 4, 8, 16, 32)
GRAPHS = ("--compilation-config", json.dumps({"cudagraph_capture_sizes": SIZES}))
#: Drafts of repeated text: any model can check them.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@dataclass(frozen=True)
class Case:
    """A way to serve a pack."""

    name: str
    arguments: tuple[str, ...]
    graphs: bool = True


CASES = (
    Case("graphs", GRAPHS),
    Case("drafts", (*GRAPHS, "--speculative-config", json.dumps(DRAFTS))),
    Case("eager", ("--enforce-eager",), graphs=False),
)


def served_cases() -> Iterator[tuple[Path, Case]]:
    """The pack of the package, whose layers have 2 and 3 bits, in each way; those brought along with graphs."""
    yield from ((demo_pack(), case) for case in CASES)
    if folder := os.environ.get("GLM53_EXL3_TEST_PACKS"):
        yield from ((pack, CASES[0]) for pack in sorted(Path(folder).iterdir()))


@dataclass(frozen=True)
class Served:
    """A running server and what it serves."""

    pack: Path
    case: Case
    server: ServerProcess
    seconds: float


@pytest.fixture(scope="module", params=served_cases(), ids=lambda param: f"{param[0].name}-{param[1].name}")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pack, case = request.param
    port = free_port()
    command = ServerCommand(
        argv=(
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(pack)),
            *("--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN_TOKENS), "--max-num-seqs", "32"),
            *("--kv-cache-memory-bytes", str(1 << 30), "--attention-backend", "TRITON_ATTN"),
            *case.arguments,
        ),
        environment={"GLM53_EXL3_KERNEL": "exllamav3"},
        url=f"http://127.0.0.1:{port}",
        served_name=SERVED_NAME,
    )
    log_path = tmp_path_factory.mktemp("served") / "vllm.log"
    started = time.monotonic()
    try:
        with ServerProcess(command, log_path) as server:
            server.wait_healthy(START_SECONDS)
            yield Served(pack, case, server, time.monotonic() - started)
    finally:
        if folder := os.environ.get("GLM53_EXL3_TEST_LOGS"):
            (Path(folder) / f"{pack.name}-{case.name}.log").write_bytes(log_path.read_bytes())


@pytest.mark.parametrize("streaming", [True, False])
def test_every_answer_has_the_right_words_and_probability(served: Served, streaming: bool) -> None:
    from support.asking import ask_all

    canary = load_canary(served.pack)
    answers = ask_all(served.server.command.url, streaming=streaming)
    right = {answer.question: answer.logprob for answer in canary.answers}
    worst = max(abs(answer.logprob - right[answer.question]) for answer in answers)
    print(f"{served.pack.name} {served.case.name}: ready in {served.seconds:.0f} s, worst difference {worst:.5f}")
    assert len(answers) == 44
    assert canary.failures(answers) == []


def test_one_question_at_a_time(served: Served) -> None:
    from support.asking import QUESTIONS, ask_streaming

    canary = load_canary(served.pack)
    assert canary.failures(ask_streaming(served.server.command.url, question) for question in QUESTIONS) == []


def test_the_log_says_what_ran(served: Served) -> None:
    log = served.server.log_path.read_text()
    bits = {
        int(found)
        for found in re.findall(r"8 EXL3 experts, \w+, bits (\d)/\d/\d \(gate/up/down\), exllamav3 backend", log)
    }
    config = json.loads((served.pack / "config.json").read_text())["quantization_config"]
    assert bits == {config["bits"], *config.get("layer_bits", {}).values()}
    assert "reference backend" not in log
    captured = set(re.findall(r"Capturing CUDA graphs[^:]*?(PIECEWISE|FULL)", log))
    assert captured == ({"PIECEWISE", "FULL"} if served.case.graphs else set())
