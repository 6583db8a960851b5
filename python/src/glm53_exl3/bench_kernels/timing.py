"""Clocks: replays of a CUDA graph by events of the GPU, and calls by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from glm53_exl3.bench.figures import Spread, spread

#: Seconds that the replays of one row of one backend may take; slower ones are repeated less.
_BUDGET_SECONDS: Final = 0.4
_LEAST_REPEATS: Final = 5
_LEAST_WALL_REPEATS: Final = 3
_COPY_BYTES_GPU: Final = 1 << 30
_COPY_BYTES_CPU: Final = 1 << 28
_COPY_REPEATS: Final = 10
_MICRO: Final = 1e6


@dataclass(frozen=True)
class Call:
    """One call that is timed.

    Attributes:
        run: gives the output; only launches work on a GPU when `graph` is to hold it.
        reset: to be done before the output of `run` is looked at, outside the clock.
    """

    run: Callable[[], torch.Tensor]
    reset: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Timed:
    """Result of a clock.

    Attributes:
        microseconds: of one call; the mean over the calls of a replay, spread over replays.
        outputs: of each call, from the last replay, which began with a reset.
    """

    microseconds: Spread
    outputs: list[torch.Tensor]


def _spread(samples: Sequence[float]) -> Spread:
    found = spread(samples)
    assert found is not None
    return found


def time_graph(calls: Sequence[Call], repeat: int) -> Timed:
    """Record the calls, one after the other, in one CUDA graph, and time its replays.

    Args:
        calls: what a replay does.
        repeat: replays that count, at most; as many as fit the budget, and not below five of them.
    """
    for call in calls:
        call.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call.run() for call in calls]
    graph.replay()
    pace = _replay_seconds(graph, 1)[0]
    wanted = min(repeat, max(_LEAST_REPEATS, int(_BUDGET_SECONDS / max(pace, 1e-9))))
    samples = [seconds / len(calls) * _MICRO for seconds in _replay_seconds(graph, wanted)]
    for call in calls:
        call.reset()
    graph.replay()
    torch.cuda.synchronize()
    # A graph owns the memory of its outputs.
    return Timed(_spread(samples), [output.clone() for output in outputs])


def _replay_seconds(graph: torch.cuda.CUDAGraph, repeat: int) -> list[float]:
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeat)]
    for begin, end in marks:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in marks]


def time_wall(calls: Sequence[Call], repeat: int, device: torch.device) -> Timed:
    """Time calls by the wall clock, after each ran once; a GPU is waited for before and after all of them.

    Args:
        calls: what is done once a sample.
        repeat: samples, at most; as many as fit the budget, and not below three of them.
        device: where the calls run.
    """
    for call in calls:
        call.run()
    samples: list[float] = []
    began = time.perf_counter()
    while len(samples) < repeat and (
        len(samples) < _LEAST_WALL_REPEATS or time.perf_counter() - began < _BUDGET_SECONDS
    ):
        _wait(device)
        begin = time.perf_counter()
        for call in calls:
            call.run()
        _wait(device)
        samples.append((time.perf_counter() - begin) / len(calls) * _MICRO)
    for call in calls:
        call.reset()
    return Timed(_spread(samples), [call.run() for call in calls])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_bandwidth(device: torch.device) -> Spread:
    """Bytes a second that a copy within memory reads and writes together, both counted."""
    size = _COPY_BYTES_CPU if device.type == "cpu" else _COPY_BYTES_GPU
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    call = Call(lambda: target.copy_(source))
    samples = [
        2 * size / (_event_seconds(call) if device.type == "cuda" else _wall_seconds(call))
        for _ in range(_COPY_REPEATS + 2)
    ]
    return _spread(samples[2:])


def _event_seconds(call: Call) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    call.run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _wall_seconds(call: Call) -> float:
    begin = time.perf_counter()
    call.run()
    return time.perf_counter() - begin
