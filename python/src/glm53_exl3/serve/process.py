"""vLLM as a child process: started in a session of its own, watched until healthy, ended with all its children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from glm53_exl3.errors import ServerError
from glm53_exl3.serve.argv import ServerCommand
from glm53_exl3.serve.log_lines import PHASES, find_error, phase_index
from glm53_exl3.serve.senses import is_healthy

_POLL_SECONDS: Final = 0.2
#: vLLM gives running requests some time; beyond this its processes are ended one and all.
STOP_SECONDS: Final = 8.0
_KEPT_LINES: Final = 2000


class ServerProcess:
    """One `vllm serve`, as a context manager.

    Args:
        command: how vLLM is started, and where it answers then.
        log_path: file that receives everything vLLM prints.
        on_phase: called with the name of each phase of the start as it begins.
    """

    def __init__(
        self, command: ServerCommand, log_path: Path, on_phase: Callable[[str], None] = lambda phase: None
    ) -> None:
        self.command = command
        self.log_path = log_path
        self._on_phase = on_phase
        self._phase = 0
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._pump: threading.Thread | None = None

    def __enter__(self) -> ServerProcess:
        """Start vLLM."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop vLLM and everything it started."""
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of vLLM, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start vLLM; returns at once."""
        self._on_phase(PHASES[0][0])
        self._process = subprocess.Popen(
            self.command.argv,
            env=self.command.whole_environment(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            # A session of its own: Ctrl-C reaches only this program, which then ends vLLM in order.
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._pump.start()

    def wait_healthy(self, timeout_seconds: float) -> None:
        """Wait until `/health` answers and `/v1/models` lists the served name.

        Raises:
            ServerError: vLLM ended first, for the reason in its log, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_healthy(self.command.url, self.command.served_name, self.command.headers):
            if self._process is None or self._process.poll() is not None:
                raise self._ended()
            if time.monotonic() > deadline:
                raise ServerError(
                    "server-slow",
                    f"vLLM was not ready after {timeout_seconds:.0f} s, while {PHASES[self._phase][0]}",
                    hint=f"look at the last lines of {self.log_path}",
                )
            time.sleep(_POLL_SECONDS)

    def wait_ended(self) -> None:
        """Wait until vLLM ends by itself.

        Raises:
            ServerError: always, with the reason in its log.
        """
        assert self._process is not None
        self._process.wait()
        raise self._ended()

    def stop(self) -> None:
        """End vLLM: SIGTERM first, SIGKILL for what is left of its process group after `STOP_SECONDS`."""
        process = self._process
        if process is None:
            return
        try:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._pump is not None:
            self._pump.join(timeout=2)
        self._process = None

    def _ended(self) -> ServerError:
        if self._pump is not None:
            self._pump.join(timeout=2)
        code = self._process.returncode if self._process else None
        return find_error(list(self._lines)) or ServerError(
            "server-ended",
            f"vLLM ended with code {code}, last seen {PHASES[self._phase][0]}",
            found=next(self._last_errors(), ""),
            hint=f"look at the last lines of {self.log_path}",
        )

    def _last_errors(self) -> Iterator[str]:
        return (line for line in reversed(self._lines) if "Error" in line)

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError), self.log_path.open("w", encoding="utf-8") as log:
            for line in process.stdout:
                self._note(line)
                log.write(line)
                log.flush()
        # After a failure to write, a full disk say: vLLM would stand still as soon as the pipe is full.
        for line in process.stdout:
            self._note(line)

    def _note(self, line: str) -> None:
        self._lines.append(line.rstrip("\n"))
        index = phase_index(line)
        if index is not None and index > self._phase:
            self._phase = index
            self._on_phase(PHASES[index][0])
