"""What a check found, and the report made of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from glm53_exl3.errors import ExitCode

Status = Literal["ok", "warn", "fail", "skip"]
Scope = Literal["host", "runtime", "pack"]

#: Version of the JSON report; docs/preflight.schema.json describes it.
SCHEMA: Final = 1
_ORDER: Final[dict[Status, int]] = {"fail": 0, "warn": 1, "ok": 2, "skip": 3}


@dataclass(frozen=True)
class CheckResult:
    """One line of the report.

    Attributes:
        id: kebab-case name, stable across releases.
        title: what was looked at, a few words.
        status: `ok`; `warn`, may go wrong; `fail`, will go wrong; `skip`, could not be decided here.
        measured: the value found, or why nothing could be found.
        hint: what to do, preferably a command to paste; empty for `ok` and `skip`.
        scope: `host`, `runtime` or `pack`.
    """

    id: str
    title: str
    status: Status
    measured: str
    hint: str
    scope: Scope


@dataclass(frozen=True)
class Check:
    """A check by name; its methods make the results.

    Attributes:
        id: kebab-case name, stable across releases.
        title: what is looked at, a few words.
        scope: `host`, `runtime` or `pack`.
    """

    id: str
    title: str
    scope: Scope

    def ok(self, measured: str) -> CheckResult:
        """All is well."""
        return CheckResult(self.id, self.title, "ok", measured, "", self.scope)

    def warn(self, measured: str, hint: str) -> CheckResult:
        """It may go wrong."""
        return CheckResult(self.id, self.title, "warn", measured, hint, self.scope)

    def fail(self, measured: str, hint: str) -> CheckResult:
        """It will go wrong."""
        return CheckResult(self.id, self.title, "fail", measured, hint, self.scope)

    def skip(self, reason: str) -> CheckResult:
        """It could not be decided here."""
        return CheckResult(self.id, self.title, "skip", reason, "", self.scope)


@dataclass(frozen=True)
class Report:
    """Everything a run found.

    Attributes:
        results: failures first, then warnings, what is well, and what was skipped.
        unseen: what no preflight can know without loading the model.
        runtime: `fork` or `upstream`.
        fast: whether the slow probes were left out.
        seconds: wall-clock time of the run.
    """

    results: tuple[CheckResult, ...]
    unseen: tuple[str, ...]
    runtime: str
    fast: bool
    seconds: float

    def of(self, status: Status) -> list[CheckResult]:
        """Results of one status, in the order of the report."""
        return [result for result in self.results if result.status == status]

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """0 without a failure, 1 with one; strict, a warning is one too."""
        failed = self.of("fail") or (strict and self.of("warn"))
        return ExitCode.FIXABLE if failed else ExitCode.OK

    def to_json(self) -> dict[str, Any]:
        """The report as docs/preflight.schema.json describes it."""
        return {
            "schema": SCHEMA,
            "runtime": self.runtime,
            "fast": self.fast,
            "seconds": round(self.seconds, 3),
            "failed": bool(self.of("fail")),
            "counts": {status: len(self.of(status)) for status in _ORDER},
            "checks": [asdict(result) for result in self.results],
            "unseen": list(self.unseen),
        }

    def render(self) -> str:
        """The report as text: one line a check, a hint below each failure and warning, last what was not checked."""
        shown = [result for result in self.results if result.status != "skip"]
        width = max((len(result.id) for result in shown), default=0)
        lines: list[str] = []
        for result in shown:
            lines.append(f"{result.status:4}  {result.id:{width}}  {result.measured}")
            if result.hint:
                lines.append(f"      {'':{width}}  hint: {result.hint}")
        counts = ", ".join(f"{len(self.of(status))} {name}" for status, name in _COUNTED)
        lines += ["", f"{counts} in {self.seconds:.1f} s", self._not_checked()]
        return "\n".join(lines)

    def _not_checked(self) -> str:
        by_reason: dict[str, list[str]] = {}
        for result in self.of("skip"):
            by_reason.setdefault(result.measured, []).append(result.id)
        parts = [f"{', '.join(ids)} ({reason})" for reason, ids in by_reason.items()]
        parts.append(f"only loading the model shows: {', '.join(self.unseen)}")
        return f"not checked: {'; '.join(parts)}"


_COUNTED: Final[tuple[tuple[Status, str], ...]] = (
    ("fail", "failed"),
    ("warn", "warned"),
    ("ok", "ok"),
    ("skip", "not checked"),
)


def worst_first(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Results by status, otherwise in the order given."""
    return tuple(sorted(results, key=lambda result: _ORDER[result.status]))
