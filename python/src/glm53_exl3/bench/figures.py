"""Figures of a level from its requests: medians with their spread."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.bench.answer import NO_FAILURE
from glm53_exl3.bench.load import Level, Sample


@dataclass(frozen=True)
class Spread:
    """A median and what lies around it.

    Attributes:
        p10: a tenth of the values is below.
        p50: the median.
        p90: a tenth of the values is above.
        count: number of values.
    """

    p10: float
    p50: float
    p90: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """Deciles, interpolated between the two nearest values; None without a value."""
    found = list(values)
    if not found:
        return None
    if len(found) == 1:
        return Spread(found[0], found[0], found[0], 1)
    deciles = statistics.quantiles(found, n=10, method="inclusive")
    return Spread(deciles[0], statistics.median(found), deciles[8], len(found))


def inter_token_seconds(sample: Sample) -> float | None:
    """Mean time between two tokens of an answer; None for an answer of one."""
    if sample.first_seconds is None or sample.last_seconds is None or (sample.completion_tokens or 0) < 2:
        return None
    return (sample.last_seconds - sample.first_seconds) / ((sample.completion_tokens or 0) - 1)


def tokens_per_second(sample: Sample) -> float | None:
    """Rate of an answer from its first token to its last."""
    between = inter_token_seconds(sample)
    return 1 / between if between else None


def prefill_tokens_per_second(sample: Sample) -> float | None:
    """Tokens of the prompt over the time to the first token, which includes the time in the queue.

    None when part of the prompt came from the prefix cache: that part was not computed.
    """
    if not sample.first_seconds or not sample.prompt_tokens or sample.cached_tokens:
        return None
    return sample.prompt_tokens / sample.first_seconds


#: How to read a figure off one answer.
BY_REQUEST: Final[Mapping[str, Callable[[Sample], float | None]]] = {
    "tokens_per_second": tokens_per_second,
    "first_token_seconds": lambda sample: sample.first_seconds,
    "inter_token_seconds": inter_token_seconds,
    "longest_gap_seconds": lambda sample: sample.longest_gap_seconds,
    "prefill_tokens_per_second": prefill_tokens_per_second,
    "request_seconds": lambda sample: sample.seconds,
}
TOTAL: Final = "total_tokens_per_second"


@dataclass(frozen=True)
class Figures:
    """What a level comes to. Only complete answers count, except in `outcomes`.

    Attributes:
        spreads: by name. `total_tokens_per_second` is over runs, all tokens of a run by its length; the others, those
            of `BY_REQUEST`, are over requests. None without a value.
        outcomes: number of requests by how they ended.
    """

    spreads: Mapping[str, Spread | None]
    outcomes: Mapping[str, int]

    @property
    def num_failed(self) -> int:
        """Requests that failed."""
        return sum(count for outcome, count in self.outcomes.items() if outcome not in NO_FAILURE)

    @property
    def num_answered(self) -> int:
        """Complete answers."""
        return self.outcomes.get("answered", 0)


def level_figures(level: Level) -> Figures:
    """Figures of a level."""
    answered = _answered(level.samples)
    spreads: dict[str, Spread | None] = {TOTAL: spread(total_by_run(level))}
    for name, value in BY_REQUEST.items():
        spreads[name] = spread(found for sample in answered if (found := value(sample)) is not None)
    return Figures(spreads, dict(sorted(Counter(sample.outcome for sample in level.samples).items())))


def total_by_run(level: Level) -> list[float]:
    """Tokens a second of all clients together, for each run with an answer."""
    totals: list[float] = []
    for samples in _runs(level).values():
        seconds = max(sample.started_seconds + sample.seconds for sample in samples)
        tokens = sum(sample.completion_tokens or 0 for sample in _answered(samples))
        if tokens and seconds:
            totals.append(tokens / seconds)
    return totals


def median_by_run(level: Level, name: str) -> list[float]:
    """Median of a figure of `BY_REQUEST` in each run that has one."""
    value = BY_REQUEST[name]
    found = [[value(sample) for sample in _answered(samples)] for samples in _runs(level).values()]
    numbers = [[number for number in run if number is not None] for run in found]
    return [statistics.median(run) for run in numbers if run]


def _answered(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.outcome == "answered"]


def _runs(level: Level) -> dict[int, list[Sample]]:
    runs: dict[int, list[Sample]] = {}
    for sample in level.samples:
        runs.setdefault(sample.run, []).append(sample)
    return runs
