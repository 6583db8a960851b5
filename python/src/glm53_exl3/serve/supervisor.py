"""`serve` as vLLM's parent: a start with limits, a canary before it is ready, then a watch over memory and tokens.

Before it is ready a start can fail for a named reason; afterwards this program only hands signals on and waits, unless
the host runs out of memory or the engine stands still.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.probes.memory import HostMemory, read_host_memory
from glm53_exl3.serve.boot import CANARY, LOADING, Boot
from glm53_exl3.serve.child import Child
from glm53_exl3.serve.log_lines import find_error
from glm53_exl3.serve.notify import Notifier
from glm53_exl3.serve.watch import EngineState, LostMachine, Watchdog, below_floor

_TURN_SECONDS: Final = 0.2
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXTENSION_SECONDS: Final = 30.0
#: A host that runs out of memory cannot wait for a server to end politely.
_MEMORY_STOP_SECONDS: Final = 2.0
#: An engine that dies takes vLLM with it within this time; what its last answer was says nothing about the pack.
_DYING_SECONDS: Final = 5.0


class ServeExit(IntEnum):
    """Exit codes of `serve` beside vLLM's own; a service unit tells causes apart by them."""

    REFUSED = 65
    CANARY = 69
    BUG = 70
    MEMORY = 75
    STALL = 76


@dataclass(frozen=True)
class Vigilance:
    """What ends a server.

    Attributes:
        floor_bytes: host memory below which it is ended, 0 for never.
        watchdog_seconds: time without a token while requests run, 0 for never.
        stop_seconds: time that vLLM gets to end by itself.
        phase_limits: seconds by name of a phase of the start.
        headless: whether there is no API to ask, so that it is ready as soon as vLLM starts its ranks.
        lost_seconds: time without machine 0 after which the ranks of another are ended.
    """

    floor_bytes: int = 0
    watchdog_seconds: float = 180.0
    stop_seconds: float = 30.0
    phase_limits: Mapping[str, float] = field(default_factory=dict)
    headless: bool = False
    lost_seconds: float = 15.0


@dataclass(frozen=True)
class Senses:
    """How the supervisor learns of the world; tests put their own in.

    Attributes:
        healthy: whether our server answers `/health` and lists the model.
        engine: state of the engine from `/metrics`, None without an answer.
        canary: asks the first question; returns what came of it or raises :class:`Glm53Error`.
        probe: asks an engine that seems idle for one token and returns once it has come; raises otherwise. None: never.
        machine_0: whether it is there, for another machine of the same server. None: this is machine 0.
        memory: of the host.
        clock: seconds, monotonic.
    """

    healthy: Callable[[], bool]
    engine: Callable[[], EngineState | None]
    canary: Callable[[], str] | None
    probe: Callable[[], str] | None = None
    machine_0: Callable[[], bool] | None = None
    memory: Callable[[], HostMemory] = read_host_memory
    clock: Callable[[], float] = time.monotonic


class Supervisor:
    """One run of vLLM.

    Args:
        vigilance: what ends it.
        senses: how it learns of the world.
        notifier: the service manager.
        say: prints one line for the user, on standard error.
    """

    def __init__(self, vigilance: Vigilance, senses: Senses, notifier: Notifier, say: Callable[[str], None]) -> None:
        self._vigilance = vigilance
        self._senses = senses
        self._notifier = notifier
        self._say = say
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stop_asked: float | None = None
        self._stop_signal = 0

    def run(self, command: Sequence[str], environment: Mapping[str, str], stdout: int = 1, stderr: int = 2) -> int:
        """Start vLLM, see it through, and return the exit code of `serve`."""
        boot = Boot(self._senses.clock(), self._vigilance.phase_limits)
        # Signals that come before the child exists end this program, which then has nothing to clean up.
        child = Child(command, environment, stdout, stderr, self._lines.put)
        with self._forwarding(child):
            try:
                self._say(f"vLLM is process {child.pid}")
                watch = self._accompany if self._vigilance.headless else self._watch
                return self._as_asked(self._boot(child, boot) or watch(child))
            except BaseException:
                child.kill()
                raise
            finally:
                child.wait()

    def _boot(self, child: Child, boot: Boot) -> int:
        """See a start through; 0 once the server is ready, else the exit code."""
        self._announce(boot)
        canary: _Background | None = None
        while True:
            code = self._ended(child)
            if code is not None:
                self._explain(child, boot)
                return self._code_of_failed_start(child, code)
            self._follow(boot)
            if self._stop_asked is None:
                reason = self._memory_reason()
                if reason is not None:
                    return self._end(child, ServeExit.MEMORY, f"memory-floor: {reason}, while {boot.phase}")
                limit = boot.overdue(self._senses.clock())
                if limit is not None:
                    return self._end(child, ServeExit.STALL, _stall(boot, limit))
                if self._vigilance.headless:
                    if boot.index > 0:
                        self._ready(boot, "not asked, since this machine has no API")
                        return 0
                elif canary is None and boot.index < CANARY and self._senses.healthy():
                    boot.enter(CANARY, self._senses.clock())
                    self._announce(boot)
                    canary = _Background(self._senses.canary or (lambda: "not asked"), self._senses.clock())
                if canary is not None and canary.done():
                    if canary.error is not None:
                        return self._failed_canary(child, canary.error)
                    self._ready(boot, canary.answer)
                    return 0
            time.sleep(_TURN_SECONDS)

    def _watch(self, child: Child) -> int:
        """Watch a server that is ready until it ends; its exit code."""
        seconds = self._vigilance.watchdog_seconds
        watchdog = Watchdog(seconds, self._senses.clock())
        interval = max(_TURN_SECONDS, min(5.0, seconds / 10))
        next_check = self._senses.clock() + interval
        probe: _Background | None = None
        while True:
            code = self._ended(child)
            if code is not None:
                self._drain()
                if self._stop_asked is None:
                    self._say(f"vLLM ended with code {code}")
                # A server that nobody asked to stop has failed, also when it says 0.
                return code if self._stop_asked is not None else code or 1
            self._drain()
            if self._stop_asked is None:
                reason = self._memory_reason()
                if reason is not None:
                    return self._end(child, ServeExit.MEMORY, f"memory-floor: {reason}")
                if seconds and self._senses.clock() >= next_check:
                    next_check = self._senses.clock() + interval
                    reason = watchdog.check(self._senses.engine(), self._senses.clock())
                    probe, unanswered = self._probed(watchdog, probe)
                    reason = reason or unanswered
                    if reason is not None:
                        return self._end(child, ServeExit.STALL, f"engine-stalled: {reason}")
            time.sleep(_TURN_SECONDS)

    def _accompany(self, child: Child) -> int:
        """Watch ranks of a server whose API is on machine 0 until they end; the exit code."""
        lost = LostMachine(self._vigilance.lost_seconds)
        next_check = self._senses.clock()
        while True:
            code = self._ended(child)
            if code is not None:
                self._drain()
                if self._stop_asked is None:
                    self._say(f"vLLM ended with code {code}")
                # It was ready before its weights were loaded, so it may have failed as a start does.
                return self._code_of_failed_start(child, code)
            self._drain()
            if self._stop_asked is None:
                reason = self._memory_reason()
                if reason is not None:
                    return self._end(child, ServeExit.MEMORY, f"memory-floor: {reason}")
                if self._senses.machine_0 is not None and self._senses.clock() >= next_check:
                    next_check = self._senses.clock() + self._vigilance.lost_seconds / 3
                    reason = lost.check(self._senses.machine_0(), self._senses.clock())
                    if reason is not None:
                        return self._end(child, ServeExit.STALL, f"machine-lost: {reason}")
            time.sleep(_TURN_SECONDS)

    def _probed(self, watchdog: Watchdog, probe: _Background | None) -> tuple[_Background | None, str | None]:
        """Ask an engine that seems idle; the request under way, and the reason to end the server, if there is one."""
        now = self._senses.clock()
        if probe is None:
            ask = self._senses.probe
            return (_Background(ask, now) if ask is not None and watchdog.wants_probe(now) else None), None
        if not probe.done():
            late = now - probe.started > self._vigilance.watchdog_seconds
            seconds = now - probe.started
            return probe, f"an idle engine has not made one token in {seconds:.0f} s" if late else None
        if probe.error is not None:
            return None, f"an idle engine does not answer: {probe.error.what}"
        watchdog.probed(now)
        return None, None

    def _failed_canary(self, child: Child, error: Glm53Error) -> int:
        """End a server whose canary failed; vLLM's own code when the engine has died of it."""
        deadline = self._senses.clock() + _DYING_SECONDS
        while self._senses.clock() < deadline:
            code = child.exit_code()
            if code is not None:
                self._say(f"vLLM ended with code {code} while it was asked its first question")
                return child.wait() or 1
            time.sleep(_TURN_SECONDS)
        return self._end(child, _code_of(error), error.render())

    def _as_asked(self, code: int) -> int:
        """0 for a vLLM that died of the SIGTERM it was sent: before it has a handler it ends in no other way."""
        asked = self._stop_asked is not None and self._stop_signal == signal.SIGTERM
        return 0 if asked and code == 128 + signal.SIGTERM else code

    def _ended(self, child: Child) -> int | None:
        """Exit code when vLLM has ended; kills what outlives its time to stop."""
        code = child.exit_code()
        if code is not None:
            return child.wait()
        if self._stop_asked is not None and self._senses.clock() - self._stop_asked > self._vigilance.stop_seconds:
            self._say(f"vLLM has not ended in {self._vigilance.stop_seconds:.0f} s and is killed")
            child.kill()
            return child.wait()
        return None

    def _end(self, child: Child, code: int, reason: str) -> int:
        """End vLLM for a reason of ours."""
        self._say(reason if reason.startswith("error: ") else f"error: {reason}")
        self._notifier.status(reason.splitlines()[0])
        self._notifier.stopping()
        child.send(signal.SIGTERM)
        seconds = self._vigilance.stop_seconds
        if code == ServeExit.MEMORY:
            seconds = min(seconds, _MEMORY_STOP_SECONDS)
        deadline = self._senses.clock() + seconds
        while child.exit_code() is None and self._senses.clock() < deadline:
            time.sleep(_TURN_SECONDS)
        child.kill()
        child.wait()
        return code

    def _memory_reason(self) -> str | None:
        return below_floor(self._senses.memory(), self._vigilance.floor_bytes) if self._vigilance.floor_bytes else None

    def _follow(self, boot: Boot) -> None:
        """Read what vLLM has printed and tell of phases and progress."""
        for line in self._drained():
            before = boot.index
            if boot.note(line, self._senses.clock()):
                if boot.index != before:
                    self._announce(boot)
                elif boot.index == LOADING:
                    self._notifier.status(boot.progress)
        self._notifier.extend_start(_EXTENSION_SECONDS)

    def _drain(self) -> None:
        for _ in self._drained():
            pass

    def _drained(self) -> Iterator[str]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._lines.get_nowait()

    def _announce(self, boot: Boot) -> None:
        self._say(f"[{self._senses.clock() - boot.started:6.1f} s] {boot.phase}")
        self._notifier.status(boot.phase)

    def _ready(self, boot: Boot, answer: str) -> None:
        now = self._senses.clock()
        self._notifier.status("serving")
        self._notifier.ready()
        self._say(f"canary: {answer}")
        taken = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in boot.durations(now).items())
        self._say(f"ready after {now - boot.started:.1f} s ({taken})")

    def _explain(self, child: Child, boot: Boot) -> None:
        self._follow(boot)
        if self._stop_asked is None:
            error = find_error(list(child.lines))
            self._say(error.render() if error else f"error: server-ended: vLLM ended while {boot.phase}")

    def _code_of_failed_start(self, child: Child, code: int) -> int:
        if self._stop_asked is not None:
            return code or 0
        return ServeExit.REFUSED if find_error(list(child.lines)) else code or 1

    @contextlib.contextmanager
    def _forwarding(self, child: Child) -> Iterator[None]:
        """Hand signals on while the child runs, but those that this process was started to ignore, as by nohup."""

        def forward(number: int, frame: object) -> None:
            if number in _ENDING:
                self._stop_asked = self._stop_asked or self._senses.clock()
                self._stop_signal = self._stop_signal or number
                self._notifier.stopping()
            child.send(number)

        heard = [number for number in _FORWARDED if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, forward) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Background:
    """A call that runs beside the watch over the server."""

    def __init__(self, call: Callable[[], str], now: float) -> None:
        self.started = now
        self.answer = ""
        self.error: Glm53Error | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.answer = self._call()
        except Glm53Error as error:
            self.error = error
        except Exception as error:
            self.error = Glm53Error(
                "internal", f"a request to the server failed with {error!r}", hint="report it with the lines above"
            )


def _code_of(error: Glm53Error) -> int:
    return ServeExit.BUG if error.id == "internal" else ServeExit.CANARY


def _stall(boot: Boot, limit: float) -> str:
    what = "made no progress" if boot.index == LOADING else "did not end"
    where = f" ({boot.progress})" if boot.index == LOADING and boot.progress else ""
    return f"start-stalled: {boot.phase}{where} {what} in {limit:.0f} s"
