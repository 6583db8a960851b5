"""The FAQ pack through `vllm serve`, our plugin and the OpenAI client."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import demo_pack, load_faq
from glm53_exl3.serve.chat import openai_client
from glm53_exl3.serve.process import ServerProcess
from support.asking import QUESTIONS, ask_all, ask_streaming, long_stream
from support.processes import family, session_members, survivors

CANARY = load_canary(demo_pack())
STOP_SECONDS = 10


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Any]) -> Iterator[ServerProcess]:
    with start_server() as running:
        yield running


def test_canary_expects_the_faq() -> None:
    assert [(entry.question, entry.answer) for entry in load_faq()] == [(a.question, a.answer) for a in CANARY.answers]


@pytest.mark.parametrize("streaming", [False, True])
def test_every_greedy_answer_is_right(server: ServerProcess, streaming: bool) -> None:
    answers = ask_all(server.command.url, streaming=streaming)
    assert len(answers) == len(QUESTIONS) >= 38
    assert CANARY.failures(answers) == []


def test_client_that_disconnects_disturbs_nobody(server: ServerProcess) -> None:
    url = server.command.url

    def leave_early(question: str) -> None:
        with openai_client(url) as client:
            stream = long_stream(client, question)
            next(iter(stream))
            stream.close()

    with ThreadPoolExecutor(16) as pool:
        leavers = [pool.submit(leave_early, question) for question in QUESTIONS[:8]]
        answers = list(pool.map(lambda question: ask_streaming(url, question), QUESTIONS[:16]))
        for leaver in leavers:
            leaver.result()
    assert CANARY.failures(answers) == []
    assert CANARY.failures([ask_streaming(url, QUESTIONS[0])]) == []


def test_log_says_what_runs_the_experts(server: ServerProcess) -> None:
    log = server.log_path.read_text()
    assert "8 EXL3 experts, mcg, bits 2/2/2 (gate/up/down), reference backend" in log
    assert "8 EXL3 experts, mcg, bits 3/3/3 (gate/up/down), reference backend" in log


# Last of this module: it ends the server.
def test_sigterm_ends_the_server_with_nothing_left(server: ServerProcess) -> None:
    session = server.pid
    everything = family(session)
    assert len(everything) > 2
    started = time.monotonic()
    os.kill(session, signal.SIGTERM)
    while session_members(session) and time.monotonic() - started < STOP_SECONDS:
        time.sleep(0.1)
    assert session_members(session) == []
    assert survivors(everything, max(0.0, STOP_SECONDS - (time.monotonic() - started))) == []
