"""The same answers whatever the parallel layout, and from the model before quantization."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import demo_pack, load_faq
from glm53_exl3.serve.chat import openai_client
from support.asking import QUESTIONS, ask_all, long_stream
from support.by_expert import write_by_expert
from support.processes import family, survivors

CANARY = load_canary(demo_pack())
STOP_SECONDS = 10
UNQUANTIZED = Path(__file__).parents[2] / "tools" / "demo" / "checkpoint"


@pytest.mark.parametrize("expert_parallel", [False, True], ids=["tensor-parallel", "expert-parallel"])
def test_two_ranks_give_the_same_answers(start_server: Callable[..., Any], expert_parallel: bool) -> None:
    with start_server(tensor_parallel=2, expert_parallel=expert_parallel) as server:
        answers = ask_all(server.command.url, streaming=False)
        log = server.log_path.read_text()
    assert CANARY.failures(answers) == []
    assert f"{4 if expert_parallel else 8} EXL3 experts, mcg, bits 2/2/2" in log


def test_torch_compile_and_decoding_for_every_batch_give_the_same_answers(
    start_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLM53_EXL3_DECODE", "call")
    with start_server(enforce_eager=False) as server:
        assert CANARY.failures(ask_all(server.command.url, streaming=False)) == []


def test_experts_of_different_bits_answer_as_their_reference(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """One of eight experts has 4 and 5 bits in a layer of 2; each rank holds four of them."""
    pack = write_by_expert(tmp_path / "pack")
    with start_server(model=pack, tensor_parallel=2, expert_parallel=True) as server:
        answers = ask_all(server.command.url, streaming=False)
        log = server.log_path.read_text()
    assert load_canary(pack).failures(answers) == []
    assert "4 EXL3 experts, mcg, bits 2+4/2+5/2+4 (gate/up/down)" in log
    assert "4 EXL3 experts, mcg, bits 2/2/2 (gate/up/down)" in log


def test_unquantized_model_gives_the_same_strings_and_ends_while_it_answers(start_server: Callable[..., Any]) -> None:
    with start_server(model=UNQUANTIZED) as server:
        answers = ask_all(server.command.url, streaming=False)
        everything = family(server.pid)
        with ExitStack() as clients:
            for question in QUESTIONS[:8]:
                client = clients.enter_context(openai_client(server.command.url))
                next(iter(long_stream(client, question)))
            started = time.monotonic()
            # vLLM itself waits for clients that still read; stopping it must not.
            server.stop()
            assert survivors(everything, 1) == []
            assert time.monotonic() - started < STOP_SECONDS
    assert [answer.answer for answer in answers] == [entry.answer for entry in load_faq()]
