"""Phases of a start from lines of its log."""

from __future__ import annotations

import pytest

from glm53_exl3.serve.boot import LOADING, PHASES, Boot, announced_phase

NAMES = [phase.name for phase in PHASES]


def test_phases_only_go_forward_and_their_times_add_up() -> None:
    boot = Boot(now=100.0)
    assert boot.note("INFO Initializing a V1 LLM engine", 103.0)
    assert boot.note("INFO Starting to load model /pack", 104.0)
    assert boot.note("INFO Available KV cache memory: 3 GiB", 110.0)
    assert not boot.note("INFO Starting to load model drafter", 111.0)
    assert boot.durations(112.0) == {
        "importing vLLM": 3.0,
        "starting the engine": 1.0,
        "loading weights": 6.0,
        "allocating the KV cache": 2.0,
    }


@pytest.mark.parametrize(
    "line",
    [
        "loading weights: 12.5 of 91.0 GiB, 1.20 GiB/s",
        "Loading safetensors checkpoint shards:  10% Completed | 12/120 [00:30<04:30,  2.5s/it]",
    ],
)
def test_loading_is_overdue_only_without_progress(line: str) -> None:
    boot = Boot(now=0.0, limits={"loading weights": 60})
    boot.enter(LOADING, 0.0)
    assert boot.overdue(60.0) is None
    assert boot.note(line, 59.0)
    assert boot.overdue(100.0) is None
    assert not boot.note(line, 100.0), "the same news again is no progress"
    assert boot.overdue(120.0) == 60
    assert boot.progress in line


def test_other_phases_are_overdue_by_their_own_limit() -> None:
    boot = Boot(now=0.0, limits={"canary": 5})
    assert boot.overdue(PHASES[0].limit_seconds) is None
    assert boot.overdue(PHASES[0].limit_seconds + 1) == PHASES[0].limit_seconds
    boot.enter(NAMES.index("canary"), 10.0)
    assert boot.overdue(15.5) == 5


def test_a_line_of_nothing_announces_nothing() -> None:
    assert announced_phase("INFO 11-30 10:00:00 [api.py:1] hello") is None
    assert announced_phase("") is None
