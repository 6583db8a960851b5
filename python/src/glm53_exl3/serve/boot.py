"""The phases of a start: which one it is in, how long each took and which took too long. Pure; times are given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Phase:
    """One phase of a start.

    Attributes:
        name: as shown and as key of the limits.
        pattern: regular expression of the lines by which vLLM 0.32.0 announces it; empty where we begin it ourselves.
        limit_seconds: longest that it may go without ending, or while weights load, without progress.
    """

    name: str
    pattern: str
    limit_seconds: float


#: In order. A GB10 was never at hand: the limits are several times the recipe's whole start of 12 minutes where a
#: compiler runs, and generous elsewhere, so that what they catch is a stall.
PHASES: Final[tuple[Phase, ...]] = (
    Phase("importing vLLM", "", 300),
    Phase("starting the engine", r"Initializing a V\d LLM engine|headless multiproc executor", 300),
    Phase("loading weights", r"Starting to load model|Loading weights|Loading safetensors|loading weights:", 300),
    Phase("compiling", r"Model loading took|Loading weights took|Starting torch\.compile|torch\.compile cache", 1800),
    Phase("allocating the KV cache", r"Available KV cache memory|KV cache size: |# (GPU|CPU) blocks", 300),
    Phase("capturing graphs", r"Capturing CUDA graph|Capturing model for", 1200),
    Phase("warming up", r"Graph capturing finished|init engine .* took|[Ww]arming up", 900),
    Phase("starting the API", r"Starting vLLM (API )?server|Started server process", 300),
    Phase("canary", "", 600),
)
LOADING: Final = 2
CANARY: Final = len(PHASES) - 1
_PATTERNS: Final = tuple(re.compile(phase.pattern) if phase.pattern else None for phase in PHASES)
#: News of the weights: from our loader (docs/loading.md) or from vLLM's progress bar over shards.
_PROGRESS: Final = re.compile(r"loading weights: [\d.]+ of [\d.]+ GiB.*|Loading safetensors[^|]*")


def announced_phase(line: str) -> int | None:
    """Index of the phase that a line of vLLM's log begins, or None."""
    for index, pattern in reversed(list(enumerate(_PATTERNS))):
        if pattern is not None and pattern.search(line):
            return index
    return None


class Boot:
    """A start as it goes.

    Args:
        now: when it began, in seconds of a monotonic clock.
        limits: seconds by name of a phase, in place of those of `PHASES`.
    """

    def __init__(self, now: float, limits: Mapping[str, float] | None = None) -> None:
        self.started = now
        self.index = 0
        self._limits = {phase.name: phase.limit_seconds for phase in PHASES} | dict(limits or {})
        self._began = {PHASES[0].name: now}
        self._progressed = now
        self.progress = ""

    @property
    def phase(self) -> str:
        """Name of the phase it is in."""
        return PHASES[self.index].name

    def note(self, line: str, now: float) -> bool:
        """Take notice of a line of the log; True when it begins a phase or is news of the weights."""
        found = _PROGRESS.search(line)
        is_news = found is not None and found[0].strip() != self.progress
        if found is not None and is_news:
            self.progress = found[0].strip()
            self._progressed = now
        index = announced_phase(line)
        begins = index is not None and index > self.index
        if index is not None and begins:
            self.enter(index, now)
        return begins or is_news

    def enter(self, index: int, now: float) -> None:
        """Begin a phase."""
        self.index = index
        self._began[self.phase] = now
        self._progressed = now

    def overdue(self, now: float) -> float | None:
        """The limit of the current phase in seconds when it is exceeded, None otherwise."""
        limit = self._limits[self.phase]
        return limit if now - self._progressed > limit else None

    def durations(self, now: float) -> dict[str, float]:
        """Seconds of each phase that took place, in order; the last goes up to `now`."""
        began = list(self._began.items())
        ends = [when for _, when in began[1:]] + [now]
        return {name: end - start for (name, start), end in zip(began, ends, strict=True)}
