"""Two receipts side by side: refused when their conditions differ, judged by median and spread where they do not."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.figures import TOTAL, Figures, Spread, level_figures, median_by_run, spread, total_by_run
from glm53_exl3.bench.load import Level
from glm53_exl3.bench.receipt import SECTIONS, Receipt

#: Runs below which a spread says too little, and warm-up runs below which the first ones may still compile: the
#: acceptance rules of the recipe (docs/benchmark.md).
LEAST_RUNS: Final = 7
LEAST_WARM_UP_RUNS: Final = 2
DEFAULT_THRESHOLD_PERCENT: Final = 5.0
_ABSENT: Final = "(not there)"
_UNKNOWN: Final = "(not known)"


@dataclass(frozen=True)
class Difference:
    """A condition that two receipts do not share.

    Attributes:
        key: its place, as `server.flags.--max-num-seqs`.
        first: its value in the first receipt, as text.
        second: the same of the second.
    """

    key: str
    first: str
    second: str


def differences(first: Any, second: Any, key: str = "") -> list[Difference]:
    """All conditions that differ, in the order of their keys."""
    if isinstance(first, dict) and isinstance(second, dict):
        found: list[Difference] = []
        for name in sorted({*first, *second}):
            below = f"{key}.{name}" if key else name
            if name in first and name in second:
                found += differences(first[name], second[name], below)
            else:
                found.append(
                    Difference(below, *(_text(side[name]) if name in side else _ABSENT for side in (first, second)))
                )
        return found
    return [] if first == second and type(first) is type(second) else [Difference(key, _text(first), _text(second))]


def _text(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def unknown_of_both(first: Any, second: Any, key: str = "") -> list[str]:
    """Keys of conditions that neither receipt knows, so that nobody can say whether they differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        shared = [name for name in first if name in second]
        return [
            each
            for name in shared
            for each in unknown_of_both(first[name], second[name], f"{key}.{name}" if key else name)
        ]
    return [key] if first is None and second is None else []


def _keys(tree: Any, prefix: str = "") -> Iterator[str]:
    """Keys of all values and of all groups of values."""
    if prefix:
        yield prefix
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _keys(value, f"{prefix}.{name}" if prefix else name)


def unknown_conditions(first: Receipt, second: Receipt) -> list[str]:
    """Conditions of server, pack and machine that neither receipt knows. Those of the client are all known."""
    one, two = ({name: each.conditions[name] for name in SECTIONS if name != "client"} for each in (first, second))
    return unknown_of_both(one, two)


def require_comparable(first: Receipt, second: Receipt, allowed: Sequence[str]) -> list[Difference]:
    """The differences that were allowed.

    Args:
        first: a receipt.
        second: another.
        allowed: keys of conditions that may differ; the key of a group, as `server.flags`, allows all below it.

    Raises:
        BenchError: `condition-unknown`: an allowed key that neither receipt has; `conditions-differ`.
    """
    known = sorted({*_keys(dict(first.conditions)), *_keys(dict(second.conditions))})
    for key in allowed:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4) or ["server.flags"]
            raise BenchError("condition-unknown", f"neither receipt has a condition {key!r}", hint=f"--allow {near[0]}")
    found = differences(dict(first.conditions), dict(second.conditions))
    refused = [each for each in found if not any(each.key == key or each.key.startswith(f"{key}.") for key in allowed)]
    if refused:
        raise BenchError(
            "conditions-differ",
            f"the receipts were not measured under the same conditions: {len(refused)} differ",
            expected="only that differs which --allow names",
            found="".join(f"\n    {each.key}: {each.first} and {each.second}" for each in refused),
            hint=f"if one is meant to differ, allow it: --allow {refused[0].key}",
        )
    return [each for each in found if each not in refused]


VerdictName = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT TESTED"]


@dataclass(frozen=True)
class Verdict:
    """One figure of one concurrency in both receipts.

    Attributes:
        concurrency: clients at the same time.
        figure: its name; `level` when the level as a whole is judged.
        verdict: whether the second is at most the threshold worse.
        reason: why it is no PASS, empty when it is one.
        first: median and deciles over the runs of the first receipt.
        second: the same of the second.
        ratio: median of the second by that of the first.
    """

    concurrency: int
    figure: str
    verdict: VerdictName
    reason: str
    first: Spread | None = None
    second: Spread | None = None
    ratio: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As in the JSON output."""
        return asdict(self)


@dataclass(frozen=True)
class _Judged:
    """A figure that is judged: by one value for each run, because runs repeat each other and requests do not."""

    name: str
    values: Callable[[Level], list[float]]
    more_is_better: bool


_FIGURES: Final = (
    _Judged(TOTAL, total_by_run, True),
    _Judged("first_token_seconds", lambda level: median_by_run(level, "first_token_seconds"), False),
    _Judged("inter_token_seconds", lambda level: median_by_run(level, "inter_token_seconds"), False),
)


def judge(first: Receipt, second: Receipt, threshold_percent: float) -> list[Verdict]:
    """Whether the second is as fast as the first, for each concurrency and figure, in ascending order."""
    one, two = ({level.concurrency: level for level in receipt.levels} for receipt in (first, second))
    warm_ups = min(receipt.conditions["client"]["warm_up_runs"] for receipt in (first, second))
    found: list[Verdict] = []
    for concurrency in sorted({*one, *two}):
        if concurrency not in one or concurrency not in two:
            there = "first" if concurrency in one else "second"
            found.append(Verdict(concurrency, "level", "NOT TESTED", f"only in the {there} receipt"))
        else:
            found += _judge_level(one[concurrency], two[concurrency], warm_ups, threshold_percent / 100)
    return found


def _judge_level(first: Level, second: Level, warm_ups: int, threshold: float) -> Iterable[Verdict]:
    one, two = level_figures(first), level_figures(second)
    if two.num_failed and not one.num_failed:
        yield Verdict(second.concurrency, "level", "FAIL", f"the second: {failures(two)}")
        return
    weak = _weakness(one, warm_ups)
    for figure in _FIGURES:
        values = figure.values(first), figure.values(second)
        spreads = spread(values[0]), spread(values[1])
        yield _judge_figure(second.concurrency, figure, spreads, threshold, weak)


def _weakness(first: Figures, warm_ups: int) -> str:
    """Why nothing can be concluded at a level, empty when something can."""
    if first.num_failed:
        return f"the first: {failures(first)}"
    return "" if warm_ups >= LEAST_WARM_UP_RUNS else f"{warm_ups} warm-up runs, {LEAST_WARM_UP_RUNS} are wanted"


def failures(figures: Figures) -> str:
    """How many requests of a level failed, as a sentence."""
    return f"{figures.num_failed} of {sum(figures.outcomes.values())} requests failed"


def _judge_figure(
    concurrency: int,
    figure: _Judged,
    spreads: tuple[Spread | None, Spread | None],
    threshold: float,
    weak: str,
) -> Verdict:
    one, two = spreads
    if one is None or two is None or not one.p50 or not two.p50:
        return Verdict(concurrency, figure.name, "NOT TESTED", "no value", one, two)
    ratio = two.p50 / one.p50
    if not weak and min(one.count, two.count) < LEAST_RUNS:
        weak = f"{min(one.count, two.count)} runs, {LEAST_RUNS} are wanted"
    if weak:
        return Verdict(concurrency, figure.name, "INCONCLUSIVE", weak, one, two, ratio)
    verdict, reason = _compare(one, two, threshold, figure.more_is_better)
    return Verdict(concurrency, figure.name, verdict, reason, one, two, ratio)


def _compare(one: Spread, two: Spread, threshold: float, more_is_better: bool) -> tuple[VerdictName, str]:
    """A verdict and its reason.

    Worse by more than the threshold is a FAIL when the spreads lie apart. Not worse is a PASS when the second lies
    wholly on the better side, or when neither spreads by more than the threshold to a side, so that it would show.
    """
    apart = one.p90 < two.p10 or two.p90 < one.p10
    change = two.p50 / one.p50 - 1
    loss = -change if more_is_better else change
    if loss > threshold:
        if apart:
            return "FAIL", f"{loss:.1%} worse"
        return "INCONCLUSIVE", f"{loss:.1%} worse, but the spreads overlap"
    widest = max((each.p90 - each.p10) / 2 / each.p50 for each in (one, two))
    if widest <= threshold or (apart and loss < 0):
        return "PASS", ""
    return "INCONCLUSIVE", f"spreads of {widest:.1%} to a side would hide {threshold:.1%}"


def equal_outputs(first: Receipt, second: Receipt) -> dict[int, tuple[int, int]]:
    """`(equal, compared)` answers to the same requests, by the concurrencies of both.

    Greedy answers may differ with the batch that a request happens to share, so this is shown and not judged.
    """
    levels = {level.concurrency: level for level in first.levels}
    return {
        level.concurrency: _equal(levels[level.concurrency], level)
        for level in second.levels
        if level.concurrency in levels
    }


def _equal(first: Level, second: Level) -> tuple[int, int]:
    answers = {sample.number: sample.output_sha256 for sample in first.samples if sample.outcome == "answered"}
    pairs = [
        answers[sample.number] == sample.output_sha256
        for sample in second.samples
        if sample.outcome == "answered" and sample.number in answers
    ]
    return sum(pairs), len(pairs)


def comparison_json(
    first: Receipt,
    second: Receipt,
    differing: Sequence[Difference],
    unknown: Sequence[str],
    verdicts: Sequence[Verdict],
    threshold_percent: float,
) -> dict[str, Any]:
    """A comparison as one JSON document."""
    equal = equal_outputs(first, second)
    return {
        "schema": 1,
        "threshold_percent": threshold_percent,
        "allowed": [asdict(each) for each in differing],
        "unknown": list(unknown),
        "verdicts": [each.to_json() for each in verdicts],
        "equal_outputs": [
            {"concurrency": concurrency, "equal": same, "compared": compared}
            for concurrency, (same, compared) in sorted(equal.items())
        ],
    }
