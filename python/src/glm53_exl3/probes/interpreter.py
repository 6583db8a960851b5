"""Facts about the runtime, reported by its own interpreter in a process that may hang or crash."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

SCRIPT: Final = Path(__file__).parent / "in_runtime" / "report.py"

#: Facts in the order they are looked for, with the seconds each may take. Reading vLLM from a cold disk takes a while.
LIMITS: Final[Mapping[str, float]] = {
    "python": 20,
    "distributions": 30,
    "driver": 20,
    "torch": 120,
    "cuda": 60,
    "extension": 60,
    "native": 60,
    "vllm": 180,
    "registry": 60,
    "exl3": 180,
    "kpool-tail": 60,
}
#: What cannot be found without another fact.
_NEEDS: Final[Mapping[str, str]] = {
    "cuda": "torch",
    "extension": "torch",
    "native": "torch",
    "vllm": "torch",
    "registry": "vllm",
    "exl3": "vllm",
    "kpool-tail": "vllm",
}


@dataclass(frozen=True)
class Fact:
    """What was found under one name: a value, or why there is none.

    Attributes:
        value: what the interpreter reported; None without one.
        error: the exception as text, empty without one.
        hung: it did not end in time, or ended the process.
        missing: name of the fact that had to be there and is not, empty when none is missing.
    """

    value: Mapping[str, Any] | None = None
    error: str = ""
    hung: bool = False
    missing: str = ""


@dataclass(frozen=True)
class RuntimeFacts:
    """Facts by name; those of :data:`LIMITS` that were asked for.

    Attributes:
        executable: the interpreter.
        facts: by name.
    """

    executable: str
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def value(self, name: str) -> Mapping[str, Any]:
        """The value of a fact, empty when there is none."""
        fact = self.facts.get(name)
        return fact.value if fact is not None and fact.value is not None else {}


def read_runtime(executable: str, limits: Mapping[str, float] = LIMITS, script: Path = SCRIPT) -> RuntimeFacts:
    """Ask an interpreter for its facts.

    One process reports all of them. When one fact hangs or kills the process, that fact is named and another process
    goes on behind it.

    Args:
        executable: path of the interpreter.
        limits: seconds by fact, in the order to look.
        script: what reports them.
    """
    facts: dict[str, Fact] = {}
    while remaining := [name for name in limits if name not in facts]:
        for name in remaining:
            if _is_lost(facts, need := _NEEDS.get(name, "")):
                facts[name] = Fact(missing=need)
        if asked := [name for name in remaining if name not in facts]:
            facts |= _ask(executable, asked, limits, script)
    return RuntimeFacts(executable, {name: facts[name] for name in limits})


def _is_lost(facts: Mapping[str, Fact], name: str) -> bool:
    return name in facts and facts[name].value is None


def _ask(executable: str, asked: Sequence[str], limits: Mapping[str, float], script: Path) -> dict[str, Fact]:
    """Facts of one process, up to one that hangs or kills it, or that others need and cannot have."""
    facts: dict[str, Fact] = {}
    current = asked[0]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [executable, str(script), *asked],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            return {name: Fact(error=f"{executable} does not start: {error.strerror}") for name in asked}
        try:
            lines = _lines(process)
            while (line := _next(lines, limits[current])) is not None:
                if "begin" in line:
                    current = line["begin"]
                elif "fact" in line:
                    facts[line["fact"]] = Fact(line.get("value"), line.get("error", ""))
                    if line.get("value") is None and line["fact"] in _NEEDS.values():
                        return facts
        except TimeoutError:
            facts[current] = Fact(error=f"did not end in {limits[current]:g} s", hung=True)
        finally:
            _kill(process)
        if current not in facts:
            facts[current] = Fact(error=_death(process, errors), hung=True)
    return facts


def _lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """Lines of a process as they come, None at the end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, name="lines of the runtime", daemon=True).start()
    return lines


def _next(lines: queue.Queue[str | None], limit_seconds: float) -> dict[str, Any] | None:
    """The next JSON object, None at the end.

    Raises:
        TimeoutError: it did not come in time.
    """
    while True:
        try:
            text = lines.get(timeout=limit_seconds)
        except queue.Empty as error:
            raise TimeoutError from error
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                return line


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process stuck in the driver is reached by no signal; it is left behind.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)


def _death(process: subprocess.Popen[str], errors: IO[bytes]) -> str:
    code = process.returncode
    errors.seek(0)
    tail = errors.read().decode(errors="replace").strip().splitlines()[-1:] or [""]
    how = f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
    return f"ended the interpreter ({how}) {tail[0]}".rstrip()
