"""What ends a running server before it harms the host or its users: a memory floor and a watchdog. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from glm53_exl3.probes.memory import HostMemory

_SAMPLE: Final = re.compile(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([-+0-9.eEinfNa]+)$", re.MULTILINE)
_RUNNING: Final = "vllm:num_requests_running"
#: Tokens that steps of the engine took: those of prompts as they are prefilled and those that are generated.
_PROGRESS: Final = ("vllm:iteration_tokens_total_sum", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")


@dataclass(frozen=True)
class EngineState:
    """What `/metrics` says.

    Attributes:
        running: requests that the engine works on.
        tokens: tokens it has processed since its start.
    """

    running: int
    tokens: int


def parse_metrics(text: str) -> EngineState | None:
    """State of the engine from the text of `/metrics`, None when it has not what is needed."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    if _RUNNING not in sums or not any(name in sums for name in _PROGRESS):
        return None
    return EngineState(int(sums[_RUNNING]), int(sum(sums.get(name, 0.0) for name in _PROGRESS)))


class Watchdog:
    """Notices an engine that has requests and makes no tokens, or a server that does not answer.

    Args:
        limit_seconds: longest time without progress.
        now: seconds of a monotonic clock.
    """

    def __init__(self, limit_seconds: float, now: float) -> None:
        self._limit_seconds = limit_seconds
        self._progressed = now
        self._tokens = -1
        self._busy = now

    def check(self, state: EngineState | None, now: float) -> str | None:
        """The reason to end the server, or None.

        Args:
            state: from `/metrics`; None when there was no answer.
            now: seconds of the same clock.
        """
        if state is not None and state.tokens != self._tokens:
            self._busy = now
        if state is not None and (state.running == 0 or state.tokens != self._tokens):
            self._progressed = now
            self._tokens = state.tokens
        silent = now - self._progressed
        if silent <= self._limit_seconds:
            return None
        if state is None:
            return f"the server has not answered for {silent:.0f} s"
        return f"{state.running} requests are running and no token was made for {silent:.0f} s"

    def wants_probe(self, now: float) -> bool:
        """Whether nothing has moved for half the limit, so that only a request of our own tells idle from dead.

        vLLM counts a request as running when its first step is done; an engine that hangs in that step looks idle.
        """
        return now - self._busy > self._limit_seconds / 2

    def probed(self, now: float) -> None:
        """Take notice that the engine has answered a request of our own."""
        self._busy = now


class LostMachine:
    """Notices that machine 0 is gone: vLLM's ranks on the others wait for it for ever.

    Args:
        limit_seconds: longest time without it, once it was there.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._seen: float | None = None

    def check(self, is_there: bool, now: float) -> str | None:
        """The reason to end this machine's ranks, or None; before machine 0 has been there they wait for it.

        Args:
            is_there: whether it answers.
            now: seconds of a monotonic clock.
        """
        if is_there:
            self._seen = now
        if self._seen is None or now - self._seen <= self._limit_seconds:
            return None
        return f"machine 0 has been gone for {now - self._seen:.0f} s, and its ranks have to meet these anew"


def below_floor(memory: HostMemory, floor_bytes: int) -> str | None:
    """The reason to end the server when the host's free memory is below its floor, or None.

    MemAvailable counts: what the page cache holds can be had back, and the loader fills it on purpose.
    """
    if memory.available_bytes >= floor_bytes:
        return None
    gib = 1 << 30
    return (
        f"the host has {memory.available_bytes / gib:.2f} GiB left, less than the floor of {floor_bytes / gib:.2f} GiB"
    )
