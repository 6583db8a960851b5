"""A server with an API key: it asks for it everywhere, and shows it neither to ps nor in its log."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm53_exl3.cli.demo import demo_settings
from glm53_exl3.demo.canary import load_canary
from glm53_exl3.demo.faq import SERVED_NAME, demo_pack
from glm53_exl3.serve.api_key import read_api_key
from glm53_exl3.serve.argv import build_command
from glm53_exl3.serve.chat import openai_client, stream_answer
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.process import ServerProcess
from support.asking import QUESTIONS
from support.processes import family

SECRET = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("key")
    (folder / "key").write_text(f"{SECRET}\n")
    (folder / "key").chmod(0o600)
    settings = demo_settings(demo_pack(), free_port())
    command = build_command(settings, inherited=os.environ, api_key=read_api_key(folder / "key", {}))
    with ServerProcess(command, folder / "vllm.log") as running:
        running.wait_healthy(300)
        yield running


def status(server: ServerProcess, path: str, body: bytes | None = None, key: str = "") -> int:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(server.command.url + path, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_every_way_to_the_model_asks_for_the_key(server: ServerProcess) -> None:
    chat = f'{{"model":"{SERVED_NAME}","messages":[{{"role":"user","content":"Hi"}}],"max_tokens":1}}'.encode()
    for path in ("/v1/chat/completions", "/invocations"):
        assert [status(server, path, chat), status(server, path, chat, "x"), status(server, path, chat, SECRET)] == [
            401,
            401,
            200,
        ]
    assert [status(server, "/v1/models"), status(server, "/v1/models", key=SECRET)] == [401, 200]
    assert status(server, "/tokenize", b"{}") == 401


def test_health_and_metrics_can_be_read_without(server: ServerProcess) -> None:
    assert [status(server, path) for path in ("/health", "/ping", "/metrics", "/version")] == [200] * 4


def test_client_with_the_key_gets_the_right_answer(server: ServerProcess) -> None:
    client = openai_client(server.command.url, SECRET)
    said = "".join(piece.text for piece in stream_answer(client, SERVED_NAME, QUESTIONS[0]))
    assert said == load_canary(demo_pack()).answers[0].answer


def test_key_is_neither_in_the_arguments_nor_in_the_log(server: ServerProcess) -> None:
    processes = family(server.pid)
    assert len(processes) > 1
    for process in processes:
        assert SECRET not in " ".join(process.cmdline())
    log = Path(server.log_path).read_text()
    assert "non-default args" in log
    assert SECRET not in log
