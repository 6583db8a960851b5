"""The supervisor against a stub engine: each way to go wrong, by its exit code and its words."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glm53_exl3.errors import CanaryError, ServerError
from glm53_exl3.probes.memory import HostMemory
from glm53_exl3.serve.boot import PHASES, announced_phase
from glm53_exl3.serve.notify import Notifier
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.supervisor import Senses, ServeExit, Supervisor, Vigilance
from glm53_exl3.serve.watch import EngineState, parse_metrics
from support import stub_engine
from support.processes import session_members

STUB = Path(__file__).parents[1] / "support" / "stub_engine.py"
ENGINE_PHASES = [phase.name for phase in PHASES[:-1]]
GIB = 1 << 30


def memory(available: int) -> HostMemory:
    return HostMemory(128 * GIB, available, available, 0, 0, 0)


@dataclass
class Run:
    """One supervised stub, and what was said."""

    arguments: list[str] = field(default_factory=list)
    vigilance: Vigilance = field(default_factory=lambda: Vigilance(stop_seconds=2))
    canary: Callable[[], str] = lambda: "sane"
    probe: Callable[[], str] = lambda: "one token"
    machine_0: Callable[[], bool] | None = None
    free: Callable[[], HostMemory] = lambda: memory(64 * GIB)
    environment: dict[str, str] = field(default_factory=dict)
    on_say: Callable[[str], None] = lambda line: None
    port: int = field(default_factory=free_port)
    said: list[str] = field(default_factory=list)

    def url(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.read().decode()
        except OSError:
            return None

    def engine(self) -> EngineState | None:
        text = self.url("/metrics")
        return None if text is None else parse_metrics(text)

    def say(self, line: str) -> None:
        self.said.append(line)
        self.on_say(line)

    def __call__(self) -> int:
        senses = Senses(
            healthy=lambda: "model" in (self.url("/v1/models") or ""),
            engine=self.engine,
            canary=self.canary,
            probe=self.probe,
            machine_0=self.machine_0,
            memory=self.free,
        )
        supervisor = Supervisor(self.vigilance, senses, Notifier(self.environment), self.say)
        with Path(os.devnull).open("wb") as sink:
            command = [sys.executable, str(STUB), "--port", str(self.port), *self.arguments]
            return supervisor.run(command, os.environ, sink.fileno(), sink.fileno())

    @property
    def pid(self) -> int:
        """Of the stub, which leads a session of its own."""
        (line,) = [line for line in self.said if line.startswith("vLLM is process ")]
        return int(line.split()[-1])

    @property
    def text(self) -> str:
        return "\n".join(self.said)


def limits(seconds: float) -> Vigilance:
    return Vigilance(stop_seconds=1, phase_limits=dict.fromkeys([phase.name for phase in PHASES], seconds))


def end_when_ready(number: int = signal.SIGTERM) -> Callable[[str], None]:
    def act(line: str) -> None:
        if line.startswith("ready after"):
            os.kill(os.getpid(), number)

    return act


def test_a_start_goes_through_every_phase_and_ends_at_a_signal_with_the_code_of_vllm() -> None:
    run = Run(on_say=end_when_ready())
    assert run() == 0
    announced = [line.partition("] ")[2] for line in run.said if line.startswith("[")]
    assert announced == [phase.name for phase in PHASES]
    ready = next(line for line in run.said if line.startswith("ready after"))
    assert all(phase.name in ready for phase in PHASES)
    assert "canary: sane" in run.said


@pytest.mark.parametrize("phase", ENGINE_PHASES)
def test_a_stall_names_its_phase(phase: str) -> None:
    run = Run(["--stall", phase], vigilance=limits(1.0))
    assert run() == ServeExit.STALL == 76
    assert f"start-stalled: {phase}" in run.text
    assert "in 1 s" in run.text


def test_a_canary_that_hangs_is_a_stall_of_its_phase() -> None:
    run = Run(canary=lambda: time.sleep(60) or "late", vigilance=limits(1.0))
    assert run() == ServeExit.STALL
    assert "start-stalled: canary" in run.text


def test_a_canary_that_fails_ends_the_server_with_its_code_and_its_words() -> None:
    def wrong() -> str:
        raise CanaryError("canary-insane", "the model's first answer is not sane", hint="glm53-exl3 verify PACK")

    run = Run(canary=wrong)
    assert run() == ServeExit.CANARY == 69
    assert "error: canary-insane: " in run.text
    assert "hint: glm53-exl3 verify PACK" in run.text
    assert not any(line.startswith("ready") for line in run.said)


def test_a_canary_that_breaks_is_our_bug() -> None:
    run = Run(canary=lambda: 1 / 0)
    assert run() == ServeExit.BUG == 70
    assert "ZeroDivisionError" in run.text


@pytest.mark.parametrize("phase", ENGINE_PHASES)
def test_vllm_that_ends_by_itself_keeps_its_code_and_the_phase_is_named(phase: str) -> None:
    run = Run(["--die", phase])
    assert run() == 9
    assert f"vLLM ended while {phase}" in run.text


def test_an_error_of_ours_inside_vllm_is_a_refusal_and_shown_with_its_hint() -> None:
    run = Run(["--raise-error", "loading weights"])
    assert run() == ServeExit.REFUSED == 65
    assert "error: shard-truncated: x.safetensors is short" in run.text
    assert "hint: fetch it again" in run.text


@pytest.mark.parametrize("phase", [*ENGINE_PHASES, "canary"])
def test_a_signal_in_any_phase_ends_it_and_leaves_nothing_behind(phase: str) -> None:
    def act(line: str) -> None:
        if line.endswith(f"] {phase}"):
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()

    stall = ["--stall", phase] if phase != "canary" else []
    run = Run([*stall, "--worker"], on_say=act, canary=lambda: time.sleep(5) or "late")
    before = time.monotonic()
    assert run() == 0
    assert time.monotonic() - before < 6
    assert session_members(run.pid) == []
    assert "error" not in run.text


def test_a_deaf_vllm_is_killed_after_its_time_and_its_workers_with_it() -> None:
    run = Run(["--deaf", "--worker"], on_say=end_when_ready(), vigilance=Vigilance(stop_seconds=1))
    assert run() == 128 + signal.SIGKILL
    assert "has not ended in 1 s" in run.text
    assert session_members(run.pid) == []


@contextlib.contextmanager
def disposition(number: signal.Signals, action: signal.Handlers) -> Iterator[None]:
    """What this process does at a signal; the stub inherits to ignore it."""
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_handed_on(number: signal.Signals) -> None:
    with disposition(number, signal.SIG_DFL):
        code = Run(on_say=end_when_ready(number))()
    # Python turns SIGINT into an exception and then ends by that signal; the others end the stub at once.
    assert code == 128 + number


def test_a_hangup_does_not_end_a_server_that_nohup_started() -> None:
    def hang_up(line: str) -> None:
        if line.startswith("ready after"):
            os.kill(os.getpid(), signal.SIGHUP)
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()

    run = Run(on_say=hang_up)
    started = time.monotonic()
    with disposition(signal.SIGHUP, signal.SIG_IGN):
        assert run() == 0
    assert time.monotonic() - started > 1.0


def test_a_server_that_ends_unasked_after_ready_is_a_failure_with_its_code() -> None:
    run = Run(["--die-after", "1"])
    assert run() == 4
    assert "vLLM ended with code 4" in run.text


def test_the_memory_floor_ends_a_server_that_is_ready() -> None:
    ready = threading.Event()
    run = Run(
        vigilance=Vigilance(floor_bytes=2 * GIB, stop_seconds=1),
        on_say=lambda line: ready.set() if line.startswith("ready") else None,
        free=lambda: memory(GIB if ready.is_set() else 3 * GIB),
    )
    assert run() == ServeExit.MEMORY == 75
    assert "memory-floor: the host has 1.00 GiB left, less than the floor of 2.00 GiB" in run.text


def test_the_memory_floor_ends_a_start_and_names_its_phase() -> None:
    run = Run(
        ["--stall", "loading weights"],
        vigilance=Vigilance(floor_bytes=2 * GIB, stop_seconds=1),
    )
    run.free = lambda: memory(GIB if any("loading weights" in line for line in run.said) else 3 * GIB)
    assert run() == ServeExit.MEMORY
    assert "while loading weights" in run.text


def test_the_watchdog_ends_an_engine_that_answers_health_but_makes_no_token() -> None:
    run = Run(["--busy", "--stuck"], vigilance=Vigilance(watchdog_seconds=1.0, stop_seconds=1))
    assert run() == ServeExit.STALL
    assert "engine-stalled: 1 requests are running and no token was made" in run.text


def test_the_watchdog_leaves_busy_and_idle_engines_alone() -> None:
    for arguments in (["--busy"], ["--stuck"]):
        run = Run([*arguments, "--die-after", "3"], vigilance=Vigilance(watchdog_seconds=1.0, stop_seconds=1))
        assert run() == 4


def test_the_watchdog_asks_an_engine_that_seems_idle_and_ends_one_that_does_not_answer() -> None:
    run = Run(
        ["--stuck"],
        vigilance=Vigilance(watchdog_seconds=1.0, stop_seconds=1),
        probe=lambda: time.sleep(60) or "late",
    )
    assert run() == ServeExit.STALL
    assert "engine-stalled: an idle engine has not made one token in 1 s" in run.text


def test_an_idle_engine_that_refuses_to_answer_is_ended_with_its_words() -> None:
    def refuse() -> str:
        raise ServerError("chat-failed", "the server did not answer: 500")

    run = Run(["--stuck"], vigilance=Vigilance(watchdog_seconds=1.0, stop_seconds=1), probe=refuse)
    assert run() == ServeExit.STALL
    assert "engine-stalled: an idle engine does not answer: the server did not answer: 500" in run.text


def test_an_engine_that_dies_of_the_first_question_keeps_its_code_and_is_no_bad_pack() -> None:
    def dies() -> str:
        time.sleep(1.2)
        raise CanaryError("canary-insane", "the model's first request failed: 500")

    run = Run(["--die-after", "2"], canary=dies)
    assert run() == 4
    assert "vLLM ended with code 4 while it was asked its first question" in run.text
    assert "canary-insane" not in run.text


def test_a_host_without_memory_does_not_wait_for_a_deaf_server() -> None:
    ready = threading.Event()
    run = Run(
        ["--deaf"],
        vigilance=Vigilance(floor_bytes=2 * GIB, stop_seconds=60),
        on_say=lambda line: ready.set() if line.startswith("ready") else None,
        free=lambda: memory(GIB if ready.is_set() else 3 * GIB),
    )
    before = time.monotonic()
    assert run() == ServeExit.MEMORY
    assert time.monotonic() - before < 15


def test_systemd_hears_of_ready_only_after_the_canary(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(address)
        service_manager.settimeout(0.2)

        def canary() -> str:
            heard.append("CANARY")
            return "sane"

        def listen() -> None:
            while "STOPPING=1" not in heard:
                try:
                    heard.append(service_manager.recv(4096).decode())
                except TimeoutError:
                    continue

        listener = threading.Thread(target=listen)
        listener.start()
        assert Run(canary=canary, environment={"NOTIFY_SOCKET": address}, on_say=end_when_ready())() == 0
        listener.join(timeout=5)
    order = [word for word in heard if word in ("CANARY", "READY=1", "STOPPING=1")]
    assert order == ["CANARY", "READY=1", "STOPPING=1"]
    assert "STATUS=loading weights" in heard
    assert "EXTEND_TIMEOUT_USEC=30000000" in heard


def never() -> str:
    raise AssertionError("a machine without an API has nothing to ask")


def test_a_machine_without_an_api_is_ready_once_its_ranks_start_and_is_not_asked() -> None:
    # It would stand still here, were its start seen through to the end.
    run = Run(["--stall", "starting the engine"], vigilance=Vigilance(headless=True), canary=never)
    run.on_say = end_when_ready()
    assert run() == 0
    assert "canary: not asked" in run.text


def test_a_machine_without_an_api_that_never_starts_is_a_stall() -> None:
    limits = Vigilance(headless=True, stop_seconds=1, phase_limits={"importing vLLM": 0.5})
    run = Run(["--stall", "importing vLLM"], vigilance=limits, canary=never)
    assert run() == ServeExit.STALL
    assert "ready after" not in run.text


@pytest.mark.parametrize(
    ("fault", "code"), [("--die", 9), ("--raise-error", ServeExit.REFUSED)], ids=["its own", "a bad pack"]
)
def test_a_machine_without_an_api_ends_with_the_code_of_its_cause_although_it_was_ready(fault: str, code: int) -> None:
    run = Run([fault, "compiling", "--pause", "0.5"], vigilance=Vigilance(headless=True), canary=never)
    assert run() == code
    assert "ready after" in run.text


def test_a_machine_is_ended_when_machine_0_has_gone_and_not_before_it_came() -> None:
    before = time.monotonic()
    # It comes after 0.8 s and goes after 1.6 s.
    run = Run(
        vigilance=Vigilance(headless=True, lost_seconds=0.5, stop_seconds=5),
        canary=never,
        machine_0=lambda: 0.8 < time.monotonic() - before < 1.6,
    )
    assert run() == ServeExit.STALL
    assert time.monotonic() - before > 2.0
    assert "error: machine-lost: machine 0 has been gone for " in run.text


def test_output_passes_through_byte_for_byte_and_errors_stay_errors(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.buffer.write(b'out \\xff\\n'); sys.stderr.write('bar\\rbar2\\n'); sys.exit(3)"
    supervisor = Supervisor(
        Vigilance(), Senses(lambda: False, lambda: None, None, lambda: memory(GIB)), Notifier({}), lambda line: None
    )
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        assert supervisor.run([sys.executable, "-c", code], os.environ, out.fileno(), err.fileno()) == 3
    assert (tmp_path / "out").read_bytes() == b"out \xff\n"
    assert (tmp_path / "err").read_bytes() == b"bar\rbar2\n"


def test_vllm_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    port = free_port()
    code = (
        "import os, sys\n"
        "from glm53_exl3.serve.child import Child\n"
        f"child = Child([sys.executable, {str(STUB)!r}, '--port', '{port}'], os.environ, 1, 2, lambda line: None)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_the_stub_goes_through_the_phases_of_a_start() -> None:
    assert list(stub_engine.LINES) == ENGINE_PHASES
    for phase, line in stub_engine.LINES.items():
        assert announced_phase(line) == (ENGINE_PHASES.index(phase) or None)
