"""Who asks when."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest

from glm53_exl3.bench.answer import Exchange
from glm53_exl3.bench.load import LAST_EVENT_TO_LEAVE, LevelPlan, Request, measure_level, requests_per_run, send_all

ANSWER = Exchange(outcome="answered", detail="", seconds=0.0, text="yes", reasoning="hm ")


def plan(**changes: object) -> LevelPlan:
    values = {"concurrency": 4, "requests_per_run": 6, "warm_up_runs": 2, "runs": 3, "leave_share": 0.0, "seed": 1}
    return LevelPlan(**{**values, **changes})  # type: ignore[arg-type]


def test_as_many_clients_ask_at_once_as_were_asked_for_and_never_more() -> None:
    at_once, most = 0, 0
    lock = threading.Lock()
    # Nobody is answered before four have asked: fewer clients would wait here for ever.
    barrier = threading.Barrier(4, timeout=20)

    def send(request: Request) -> Exchange:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        barrier.wait()
        with lock:
            at_once -= 1
        return ANSWER

    sent = send_all(send, [Request(number) for number in range(12)], 4)
    assert most == 4
    assert [each.request.number for each in sent] == list(range(12))


def test_warm_up_is_sent_and_not_measured() -> None:
    asked: list[int] = []
    runs: list[int] = []

    def send(request: Request) -> Exchange:
        asked.append(request.number)
        return ANSWER

    level = measure_level(plan(), send, runs.append)
    assert sorted(asked) == list(range(5 * 6))
    assert runs == [-2, -1, 0, 1, 2]
    assert [sample.number for sample in level.samples] == list(range(2 * 6, 5 * 6))
    assert [sample.run for sample in level.samples] == [0] * 6 + [1] * 6 + [2] * 6


def test_samples_start_within_their_run() -> None:
    def send(request: Request) -> Exchange:
        time.sleep(0.01)
        return ANSWER

    level = measure_level(plan(concurrency=1, requests_per_run=3, warm_up_runs=0, runs=1), send)
    starts = [sample.started_seconds for sample in level.samples]
    assert 0 <= starts[0] <= starts[1] - 0.01 <= starts[2] - 0.02


def test_samples_keep_a_hash_of_reasoning_and_text() -> None:
    level = measure_level(plan(), lambda request: ANSWER)
    assert {sample.output_sha256 for sample in level.samples} == {hashlib.sha256(b"hm yes").hexdigest()}
    silent = measure_level(plan(), lambda request: Exchange(outcome="refused", detail="", seconds=0.0))
    assert {sample.output_sha256 for sample in silent.samples} == {None}


def test_a_share_of_the_clients_leaves_and_the_same_ones_each_time() -> None:
    requests = plan(requests_per_run=2000, leave_share=0.3).requests(0)
    leaving = [request.leave_after_events for request in requests if request.leave_after_events is not None]
    # Three standard deviations of 2000 draws.
    assert len(leaving) == pytest.approx(600, abs=62)
    assert set(leaving) == set(range(1, LAST_EVENT_TO_LEAVE + 1))
    assert requests == plan(requests_per_run=2000, leave_share=0.3).requests(0)
    assert requests != plan(requests_per_run=2000, leave_share=0.3, seed=2).requests(0)


def test_nobody_leaves_by_default() -> None:
    assert {request.leave_after_events for request in plan(requests_per_run=500).requests(0)} == {None}


@pytest.mark.parametrize(
    ("concurrency", "requests", "each"), [(32, None, 32), (1, None, 1), (1, 14, 2), (4, 15, 4), (4, 50, 8)]
)
def test_requests_of_a_run(concurrency: int, requests: int | None, each: int) -> None:
    assert requests_per_run(concurrency, requests, 7) == each


def test_a_fault_of_ours_ends_the_run_and_is_raised() -> None:
    def send(request: Request) -> Exchange:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send_all(send, [Request(number) for number in range(100)], 4)
