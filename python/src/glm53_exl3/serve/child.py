"""vLLM as the child of `serve`: its output passes through untouched, signals are handed on, nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

_READ_BYTES: Final = 65536
_KEPT_LINES: Final = 2000
_PR_SET_PDEATHSIG: Final = 1
_SIGNALLED: Final = 128


class Child:
    """One vLLM.

    Args:
        command: argument vector.
        environment: its environment.
        stdout, stderr: file descriptors that receive what vLLM writes, byte for byte.
        on_line: called from other threads with each line of either.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        on_line: Callable[[str], None],
    ) -> None:
        self._on_line = on_line
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.killed = False
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A session of its own: Ctrl-C reaches only this program, which hands it on once.
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 (one system call; no other thread runs yet)
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pairs = ((self._process.stdout, stdout), (self._process.stderr, stderr))
        self._pumps = [threading.Thread(target=self._pump, args=pair, daemon=True) for pair in pairs]
        for pump in self._pumps:
            pump.start()

    @property
    def pid(self) -> int:
        """Process id, which is also that of its process group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; then its exit code, 128 and the number of the signal that ended it as a shell has it."""
        code = self._process.poll()
        if code is None:
            return None
        return _SIGNALLED - code if code < 0 else code

    def send(self, number: int) -> None:
        """Hand a signal on to vLLM's first process, which tells the others."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it and everything it started, now."""
        self.killed = True
        self._kill_group()

    def wait(self) -> int:
        """Wait for its end, end what it left behind, and return its exit code."""
        self._process.wait()
        self._kill_group()
        for pump in self._pumps:
            pump.join(timeout=2)
        code = self.exit_code()
        assert code is not None
        return code

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _pump(self, source: IO[bytes], target: int) -> None:
        rest = b""
        descriptor = source.fileno()
        while data := os.read(descriptor, _READ_BYTES):
            with contextlib.suppress(OSError):
                # A closed terminal or a full disk must not stop vLLM, which would stand still at a full pipe.
                _write_all(target, data)
            # Progress bars end their lines with a carriage return.
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                self.lines.append(text)
                self._on_line(text)


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _end_with_parent() -> None:
    """Ask Linux to end the child when this program is killed without a chance to do so."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
