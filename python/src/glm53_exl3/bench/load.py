"""Clients that ask at the same time: each sends its next request when the answer to its last one is complete."""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from glm53_exl3.bench.answer import Exchange, Outcome

#: Those who leave do so after one to this many events.
LAST_EVENT_TO_LEAVE: Final = 16


@dataclass(frozen=True)
class Request:
    """One request to send.

    Attributes:
        number: at its level, from 0, warm-up included.
        leave_after_events: when its client goes away; None stays.
    """

    number: int
    leave_after_events: int | None = None


@dataclass(frozen=True)
class Sent:
    """A request that was sent.

    Attributes:
        request: which.
        started_seconds: when it was, from the start of its run.
        exchange: what came back.
    """

    request: Request
    started_seconds: float
    exchange: Exchange


@dataclass(frozen=True)
class Sample:
    """A measured request, as a receipt keeps it. Times are those of :class:`Exchange`.

    Attributes:
        run: of its level, from 0.
        number: at its level, which decides its prompt.
        started_seconds: from the start of its run.
        output_sha256: of reasoning and text, 64 hexadecimal digits; None when there was none.
    """

    run: int
    number: int
    outcome: Outcome
    detail: str
    started_seconds: float
    seconds: float
    first_seconds: float | None
    last_seconds: float | None
    longest_gap_seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    output_sha256: str | None


@dataclass(frozen=True)
class Level:
    """Measured requests of one concurrency.

    Attributes:
        concurrency: clients at the same time.
        requests_per_run: requests of each run.
        samples: all of them, by run and number.
    """

    concurrency: int
    requests_per_run: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class LevelPlan:
    """How a level is measured.

    Attributes:
        concurrency: clients at the same time.
        requests_per_run: requests of each run; fewer than clients would leave some idle.
        warm_up_runs: runs that come first and do not count.
        runs: runs that count.
        leave_share: share of the clients, 0 to 1, that leave in the middle of an answer.
        seed: decides which, and when.
    """

    concurrency: int
    requests_per_run: int
    warm_up_runs: int
    runs: int
    leave_share: float
    seed: int

    def requests(self, run: int) -> list[Request]:
        """Requests of one run, counted from the first warm-up."""
        first = run * self.requests_per_run
        return [Request(number, self._leave_after(number)) for number in range(first, first + self.requests_per_run)]

    def _leave_after(self, number: int) -> int | None:
        drawn = random.Random(f"{self.seed}/leave/{self.concurrency}/{number}")
        return drawn.randint(1, LAST_EVENT_TO_LEAVE) if drawn.random() < self.leave_share else None


def requests_per_run(concurrency: int, requests: int | None, runs: int) -> int:
    """Requests of each run, so that a level has at least `requests` and no client is idle."""
    return max(concurrency, math.ceil((requests or 0) / runs))


def send_all(send: Callable[[Request], Exchange], requests: Sequence[Request], concurrency: int) -> list[Sent]:
    """Send requests, so many at a time; returns them in their order.

    Whatever `send` raises ends the run and is raised.
    """
    waiting = iter(requests)
    taking = threading.Lock()
    done: list[Sent] = []
    faults: list[BaseException] = []
    started = time.perf_counter()

    def client() -> None:
        try:
            for request in _taken(waiting, taking):
                if faults:
                    return
                began = time.perf_counter() - started
                done.append(Sent(request, began, send(request)))
        except BaseException as error:
            faults.append(error)

    # Daemons: Ctrl-C must not wait for answers.
    clients = [threading.Thread(target=client, daemon=True) for _ in range(min(concurrency, len(requests)))]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    if faults:
        raise faults[0]
    return sorted(done, key=lambda sent: sent.request.number)


def _taken(waiting: Iterator[Request], taking: threading.Lock) -> Iterator[Request]:
    while True:
        with taking:
            request = next(waiting, None)
        if request is None:
            return
        yield request


def measure_level(
    plan: LevelPlan, send: Callable[[Request], Exchange], on_run: Callable[[int], None] = lambda run: None
) -> Level:
    """Warm up, then measure.

    Args:
        plan: what to do.
        send: asks and waits for the answer.
        on_run: called with the number of each run that counts before it begins, negative while warming up.
    """
    samples: list[Sample] = []
    for run in range(-plan.warm_up_runs, plan.runs):
        on_run(run)
        sent = send_all(send, plan.requests(run + plan.warm_up_runs), plan.concurrency)
        if run >= 0:
            samples += [_sample(run, each) for each in sent]
    return Level(plan.concurrency, plan.requests_per_run, tuple(samples))


def _sample(run: int, sent: Sent) -> Sample:
    given = sent.exchange
    output = given.reasoning + given.text
    return Sample(
        run=run,
        number=sent.request.number,
        outcome=given.outcome,
        detail=given.detail,
        started_seconds=sent.started_seconds,
        seconds=given.seconds,
        first_seconds=given.first_seconds,
        last_seconds=given.last_seconds,
        longest_gap_seconds=given.longest_gap_seconds,
        prompt_tokens=given.prompt_tokens,
        completion_tokens=given.completion_tokens,
        cached_tokens=given.cached_tokens,
        output_sha256=hashlib.sha256(output.encode()).hexdigest() if output else None,
    )
