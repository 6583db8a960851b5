"""`glm53-exl3 serve` with the real vLLM on the CPU: phases, ready after the canary, honest ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from openai import OpenAI
from safetensors.torch import load_file, save_file

from glm53_exl3.demo.faq import demo_pack, load_faq
from glm53_exl3.serve.ports import free_port
from support.processes import family, survivors

PROGRAM = Path(sys.executable).with_name("glm53-exl3")
KEY = "c0ffee" * 8
START_SECONDS = 300


@dataclass
class Serving:
    """A running `serve`."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def text(self) -> str:
        return "".join(self.said)

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while words not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)


@contextmanager
def serving(tmp_path: Path, pack: Path, *arguments: str) -> Iterator[Serving]:
    """`serve` of a pack under a service manager of ours."""
    port = free_port()
    address = str(tmp_path / "notify")
    environment = {**os.environ, "NOTIFY_SOCKET": address}
    command = [PROGRAM, "serve", str(pack), "--profile", "demo", "--port", str(port), *arguments]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(0.5)
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            running = Serving(process, port)
            threading.Thread(target=_collect, args=(running,), daemon=True).start()
            threading.Thread(target=_listen, args=(running, manager), daemon=True).start()
            try:
                yield running
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                process.wait(60)


def _collect(running: Serving) -> None:
    assert running.process.stderr is not None
    running.said.extend(iter(running.process.stderr.readline, ""))


def _listen(running: Serving, manager: socket.socket) -> None:
    while running.process.poll() is None:
        try:
            running.heard.append(manager.recv(4096).decode())
        except TimeoutError:
            continue
        except OSError:
            return


@pytest.mark.timeout(600)
def test_serve_is_ready_after_its_canary_answers_with_the_key_and_ends_on_sigterm(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    key_file.chmod(0o600)
    with serving(tmp_path, demo_pack(), "--api-key-file", str(key_file)) as running:
        running.wait_for("ready after")
        text = running.text()
        phases = ["importing vLLM", "starting the engine", "loading weights", "allocating the KV cache", "canary"]
        assert all(f"] {phase}\n" in text for phase in phases), text
        assert text.index("] canary") < text.index("answers of its canary.json are right") < text.index("ready after")
        assert "READY=1" in running.heard
        assert running.heard.index("STATUS=canary") < running.heard.index("READY=1")

        entry = load_faq()[3]
        client = OpenAI(base_url=f"http://127.0.0.1:{running.port}/v1", api_key=KEY)
        answer = client.chat.completions.create(
            model="glm53-exl3-demo", messages=[{"role": "user", "content": entry.question}], temperature=0
        )
        assert answer.choices[0].message.content == entry.answer

        members = family(running.process.pid)
        for member in members:
            assert KEY not in " ".join(member.cmdline())
        assert KEY not in running.text()

        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0, running.text()
        assert survivors(members, 5) == []


@pytest.mark.timeout(600)
def test_serve_refuses_a_pack_that_computes_wrongly_with_the_code_of_the_canary(tmp_path: Path) -> None:
    pack = shutil.copytree(demo_pack(), tmp_path / "pack")
    (shard,) = pack.glob("*.safetensors")
    tensors = load_file(shard)
    flipped = {name: ~tensor if name.endswith("down_proj.trellis") else tensor for name, tensor in tensors.items()}
    save_file(flipped, shard)
    with serving(tmp_path, pack) as running:
        code = running.process.wait(START_SECONDS)
        assert code == 69, running.text()
    assert "error: canary-wrong: " in running.text()
    assert "READY=1" not in running.heard


@pytest.mark.timeout(600)
def test_serve_ends_non_zero_when_the_engine_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, demo_pack(), "--no-canary") as running:
        running.wait_for("ready after")
        engines = [process for process in family(running.process.pid) if "EngineCore" in " ".join(process.cmdline())]
        assert engines, [process.cmdline() for process in family(running.process.pid)]
        members = family(running.process.pid)
        for engine in engines:
            engine.kill()
        assert running.process.wait(120) not in (0, 69), running.text()
        assert survivors(members, 5) == []
