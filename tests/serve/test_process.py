"""The child process: started, watched, ended. A few lines of Python stand for vLLM; tests/server has the real one."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from glm53_exl3.errors import PackError, ServerError
from glm53_exl3.serve import ports, process
from glm53_exl3.serve.argv import ServerCommand
from glm53_exl3.serve.process import ServerProcess
from support.processes import family, survivors

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "m"}]}).encode())
    def log_message(self, *arguments): pass
print("INFO Starting to load model", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def port() -> int:
    return ports.free_port()


def child(monkeypatch: pytest.MonkeyPatch, port: int, code: str) -> ServerCommand:
    """A command that runs `code` with the port as its argument."""
    monkeypatch.setattr(process, "STOP_SECONDS", 0.5)
    return ServerCommand((sys.executable, "-c", code, str(port)), {}, f"http://127.0.0.1:{port}", "m")


def wait_for_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def stranger(port: int) -> Iterator[None]:
    """A server of somebody else that answers everything with 200."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": "other"}]}).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def test_healthy_server_is_found_despite_a_proxy(monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path) -> None:
    command = child(monkeypatch, port, SERVER)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    phases: list[str] = []
    with ServerProcess(command, tmp_path / "log", phases.append) as server:
        server.wait_healthy(20)
        pid = server.pid
    assert phases == ["importing vLLM", "loading weights"]
    assert not psutil.pid_exists(pid)


def test_child_and_grandchild_that_ignore_sigterm_are_killed(
    monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path
) -> None:
    command = child(monkeypatch, port, STUBBORN)
    with ServerProcess(command, tmp_path / "log") as server:
        wait_for_line(tmp_path / "log", "ready")
        members = family(server.pid)
        assert len(members) == 2
    assert survivors(members, 5) == []


def test_interruption_while_stopping_leaves_nothing(monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path) -> None:
    command = child(monkeypatch, port, STUBBORN)
    server = ServerProcess(command, tmp_path / "log")
    server.start()
    wait_for_line(tmp_path / "log", "ready")
    members = family(server.pid)
    assert server._process is not None
    monkeypatch.setattr(server._process, "send_signal", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert survivors(members, 5) == []


def _interrupted(number: int) -> None:
    raise KeyboardInterrupt


def test_server_of_somebody_else_is_not_ours(monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path) -> None:
    command = child(monkeypatch, port, "import time; time.sleep(1); raise SystemExit(7)")
    with (
        stranger(port),
        pytest.raises(ServerError, match="vLLM ended with code 7") as caught,
        ServerProcess(command, tmp_path / "log") as server,
    ):
        server.wait_healthy(20)
    assert caught.value.id == "server-ended"
    assert str(tmp_path / "log") in caught.value.hint


def test_own_error_in_the_log_is_the_reason(monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path) -> None:
    error = PackError("tensor-missing", "a.b.trellis is missing", expected="x", hint="fetch it")
    code = "from glm53_exl3.errors import PackError\n"
    code += f"raise PackError({error.id!r}, {error.what!r}, expected='x', hint={error.hint!r})"
    command = child(monkeypatch, port, code)
    with pytest.raises(ServerError) as caught, ServerProcess(command, tmp_path / "log") as server:
        server.wait_healthy(20)
    assert str(caught.value) == str(error)


def test_start_that_takes_too_long_names_its_phase(monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path) -> None:
    command = child(monkeypatch, port, "import time; print('Starting to load model x', flush=True); time.sleep(60)")
    with ServerProcess(command, tmp_path / "log") as server:
        wait_for_line(tmp_path / "log", "Starting")
        with pytest.raises(ServerError, match="while loading weights") as caught:
            server.wait_healthy(0.5)
    assert caught.value.id == "server-slow"


def test_log_that_cannot_be_written_does_not_stop_the_child(
    monkeypatch: pytest.MonkeyPatch, port: int, tmp_path: Path
) -> None:
    command = child(monkeypatch, port, "for _ in range(20000): print('y' * 80)")
    with ServerProcess(command, Path("/dev/full")) as server, pytest.raises(ServerError, match="ended with code 0"):
        server.wait_healthy(20)


def test_port_in_use_is_named() -> None:
    port = ports.free_port()
    assert ports.require_free(port) == port
    with stranger(port), pytest.raises(ServerError, match=f"port {port}"):
        ports.require_free(port)
