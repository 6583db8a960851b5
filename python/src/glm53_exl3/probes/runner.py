"""Probes side by side, each with a time limit of its own.

A probe is a step that may be slow, hang or crash. It gathers facts once and judges them with pure checks. One that
hangs is left behind in its daemon thread and named; the others are reported as if it were not there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from glm53_exl3.probes.result import Check, CheckResult, Scope

Facts = TypeVar("Facts")

TIMEOUT_ID: Final = "probe-timeout"
CRASH_ID: Final = "probe-crash"


@dataclass(frozen=True)
class Probe:
    """A step of the preflight.

    Attributes:
        id: kebab-case name.
        scope: `host`, `runtime` or `pack`.
        limit_seconds: how long it may take.
        run: gathers and judges.
    """

    id: str
    scope: Scope
    limit_seconds: float
    run: Callable[[], Sequence[CheckResult]]


def probe(
    id: str,
    scope: Scope,
    limit_seconds: float,
    gather: Callable[[], Facts],
    checks: Sequence[Callable[[Facts], CheckResult]],
) -> Probe:
    """A probe that gathers facts once and hands them to each check."""

    def run() -> list[CheckResult]:
        facts = gather()
        return [check(facts) for check in checks]

    return Probe(id, scope, limit_seconds, run)


def run_probes(probes: Sequence[Probe]) -> list[CheckResult]:
    """Results of all probes, in their order.

    A probe that does not end in time gives one failed result `probe-timeout`, one that raises `probe-crash`; both
    name the probe.
    """
    started = time.monotonic()
    runs = [_Run(one) for one in probes]
    for run in runs:
        run.thread.start()
    results: list[CheckResult] = []
    for run in runs:
        run.thread.join(max(0.0, started + run.probe.limit_seconds - time.monotonic()))
        results += run.outcome()
    return results


@dataclass
class _Run:
    probe: Probe
    results: Sequence[CheckResult] | None = None
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work, name=f"probe {self.probe.id}", daemon=True)

    def _work(self) -> None:
        try:
            self.results = self.probe.run()
        except Exception as error:  # a probe's bug must not hide what the others found
            self.error = error

    def outcome(self) -> Sequence[CheckResult]:
        error, results = self.error, self.results
        if isinstance(error, TimeoutError):
            return [_timeout(self.probe, str(error))]
        if error is not None:
            return [_crash(self.probe, error)]
        return [_timeout(self.probe, f"no answer in {self.probe.limit_seconds:g} s")] if results is None else results


def _timeout(probe: Probe, what: str) -> CheckResult:
    return Check(TIMEOUT_ID, f"probe {probe.id}", probe.scope).fail(
        f"{probe.id}: {what}", "what it asks hangs; run that command by hand, and reboot if it is the driver's"
    )


def _crash(probe: Probe, error: Exception) -> CheckResult:
    return Check(CRASH_ID, f"probe {probe.id}", probe.scope).fail(
        f"{probe.id}: {type(error).__name__}: {error}", "this is a bug of glm53-exl3: report it with this line"
    )
