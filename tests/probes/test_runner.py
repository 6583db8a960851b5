"""Probes that hang or crash, and the order and words of the report."""

from __future__ import annotations

import threading
import time

from glm53_exl3.errors import ExitCode
from glm53_exl3.probes.result import Check, CheckResult, Report, worst_first
from glm53_exl3.probes.runner import Probe, probe, run_probes

GOOD = Check("good", "a good one", "host")


def good() -> list[CheckResult]:
    return [GOOD.ok("fine")]


def report(*results: CheckResult) -> Report:
    return Report(worst_first(results), ("how fast it is",), "fork", fast=False, seconds=0.25)


def test_hanging_probe_is_named_and_the_others_are_reported() -> None:
    release = threading.Event()

    def hang() -> list[CheckResult]:
        release.wait(30)
        return []

    started = time.monotonic()
    found = run_probes([Probe("stuck", "runtime", 0.3, hang), Probe("good", "host", 5.0, good)])
    release.set()
    assert time.monotonic() - started < 3
    assert [(result.id, result.title, result.status, result.scope) for result in found] == [
        ("probe-timeout", "probe stuck", "fail", "runtime"),
        ("good", "a good one", "ok", "host"),
    ]
    assert found[0].measured == "stuck: no answer in 0.3 s"


def test_two_hanging_probes_wait_side_by_side() -> None:
    release = threading.Event()

    def hang() -> list[CheckResult]:
        release.wait(30)
        return []

    started = time.monotonic()
    found = run_probes([Probe(f"stuck {number}", "host", 0.5, hang) for number in range(8)])
    release.set()
    assert time.monotonic() - started < 2
    assert {result.id for result in found} == {"probe-timeout"}


def test_crashing_probe_is_named_with_its_error() -> None:
    def crash() -> list[CheckResult]:
        raise KeyError("MemTotal")

    found = run_probes([Probe("memory", "host", 5.0, crash), Probe("good", "host", 5.0, good)])
    assert [(result.id, result.status, result.measured) for result in found] == [
        ("probe-crash", "fail", "memory: KeyError: 'MemTotal'"),
        ("good", "ok", "fine"),
    ]
    assert "report" in found[0].hint


def test_program_that_does_not_end_is_a_timeout() -> None:
    def hang() -> list[CheckResult]:
        raise TimeoutError("nvidia-smi did not end in 4 s")

    (found,) = run_probes([Probe("gpu", "host", 5.0, hang)])
    assert (found.id, found.measured) == ("probe-timeout", "gpu: nvidia-smi did not end in 4 s")


def test_probe_gathers_once_for_all_its_checks() -> None:
    gathered: list[int] = []

    def gather() -> int:
        gathered.append(1)
        return 7

    one = probe("numbers", "host", 5.0, gather, [lambda facts: GOOD.ok(str(facts)), lambda facts: GOOD.ok(str(-facts))])
    assert [result.measured for result in run_probes([one])] == ["7", "-7"]
    assert gathered == [1]


def test_report_shows_failures_first_then_warnings_and_ends_with_what_was_not_checked() -> None:
    text = report(
        GOOD.ok("fine"),
        Check("late", "late", "pack").skip("left out by --fast"),
        Check("old", "old", "host").warn("0.1", "update"),
        Check("lost", "lost", "host").fail("not there", "look"),
        Check("later", "later", "pack").skip("left out by --fast"),
    ).render()
    assert text.splitlines() == [
        "fail  lost  not there",
        "            hint: look",
        "warn  old   0.1",
        "            hint: update",
        "ok    good  fine",
        "",
        "1 failed, 1 warned, 1 ok, 2 not checked in 0.2 s",
        "not checked: late, later (left out by --fast); only loading the model shows: how fast it is",
    ]


def test_only_failures_fail_unless_strict() -> None:
    warned = report(GOOD.warn("0.1", "update"))
    assert (warned.exit_code(), warned.exit_code(strict=True)) == (ExitCode.OK, ExitCode.FIXABLE)
    failed = report(GOOD.fail("0.1", "update"))
    assert (failed.exit_code(), failed.exit_code(strict=True)) == (ExitCode.FIXABLE, ExitCode.FIXABLE)
    skipped = report(GOOD.skip("not now"))
    assert (skipped.exit_code(), skipped.exit_code(strict=True)) == (ExitCode.OK, ExitCode.OK)
