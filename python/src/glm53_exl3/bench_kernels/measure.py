"""The measurement: layers and batches, what they have to give, every backend, and the two floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from glm53_exl3.bench.figures import Spread
from glm53_exl3.bench_kernels.backends import Backend
from glm53_exl3.bench_kernels.floors import expert_bytes, is_cold, num_calls, num_layers
from glm53_exl3.bench_kernels.grouped_gemm import dense_bytes, random_dense
from glm53_exl3.bench_kernels.layers import Batch, random_batch, random_layer, touched_experts
from glm53_exl3.bench_kernels.machine import describe_machine, free_bytes, give_back, l2_bytes
from glm53_exl3.bench_kernels.oracle import expected_outputs
from glm53_exl3.bench_kernels.result import Cell, KernelBench, Row
from glm53_exl3.bench_kernels.settings import KernelBenchSettings
from glm53_exl3.bench_kernels.timing import Call, Timed, copy_bandwidth, time_graph, time_wall
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.accuracy import relative_error
from glm53_exl3.kernels.interface import PackedLayer


@dataclass(frozen=True)
class Workload:
    """The calls of one batch size.

    Attributes:
        tokens: T.
        layers: number of the layer of each call.
        batches: of each call.
        expected: output fp32 `[T, hidden]` of each call.
    """

    tokens: int
    layers: list[int]
    batches: list[Batch]
    expected: list[torch.Tensor]


def measure(
    settings: KernelBenchSettings,
    device: torch.device,
    backends: Sequence[Backend],
    progress: Callable[[str], None],
) -> KernelBench:
    """Measure backends on one device.

    Args:
        settings: what to time.
        device: a GPU or a CPU.
        backends: which; one that cannot run is left out with its reason, unless the settings name it.
        progress: gets a line at each step.

    Raises:
        KernelError: of a backend that the settings name.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    cache = l2_bytes(device)
    layers = [random_layer(settings, n, device) for n in range(num_layers(settings.shape, settings.bits, cache))]
    progress(f"reference: fp32 products over decoded weights, T = {', '.join(map(str, settings.tokens))}")
    workloads = make_workloads(settings, layers, cache, device)
    bandwidth = copy_bandwidth(device)
    cells: list[dict[str, Cell]] = [{} for _ in workloads]
    details: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for backend in backends:
        progress(f"{backend.name}: timed")
        try:
            details[backend.name], found = _time_backend(backend, settings, layers, workloads, device)
        except KernelError as error:
            if settings.backends is not None:
                raise
            left_out[backend.name] = error.what
            continue
        finally:
            give_back(device)
        for row, cell in zip(cells, found, strict=True):
            row[backend.name] = cell
    progress("dense products: timed")
    method, gemm = _time_dense(settings, workloads, device)
    rows = tuple(
        _row(settings, workload, cache, dense, found)
        for workload, dense, found in zip(workloads, gemm, cells, strict=True)
    )
    machine = describe_machine(device)
    return KernelBench(date, settings, machine, len(layers), bandwidth, method, details, left_out, rows)


def make_workloads(
    settings: KernelBenchSettings, layers: Sequence[PackedLayer], cache: int, device: torch.device
) -> list[Workload]:
    """Batches of each size with what they have to give; on a CPU, where nothing is rotated, one call each."""
    workloads: list[Workload] = []
    for tokens in settings.tokens:
        calls = 1
        if device.type == "cuda":
            calls = num_calls(settings.shape, settings.bits, tokens, cache, settings.routing)
        batches = [random_batch(settings, tokens, number, device) for number in range(calls)]
        workloads.append(Workload(tokens, [number % len(layers) for number in range(calls)], batches, []))
    outputs: dict[int, torch.Tensor] = {}
    for number, layer in enumerate(layers):
        mine = [
            batch
            for workload in workloads
            for which, batch in zip(workload.layers, workload.batches, strict=True)
            if which == number
        ]
        for batch, output in zip(mine, expected_outputs(layer, mine), strict=True):
            outputs[id(batch)] = output
    for workload in workloads:
        workload.expected.extend(outputs[id(batch)] for batch in workload.batches)
    return workloads


def _time_backend(
    backend: Backend,
    settings: KernelBenchSettings,
    layers: Sequence[PackedLayer],
    workloads: Sequence[Workload],
    device: torch.device,
) -> tuple[str, list[Cell]]:
    in_graph = backend.captured and device.type == "cuda"
    built = backend.build(layers, max(settings.tokens), settings.shape.top_k)
    cells: list[Cell] = []
    for workload in workloads:
        calls = [built.prepare(number, batch) for number, batch in zip(workload.layers, workload.batches, strict=True)]
        timed = _time(calls, settings.repeat, device, in_graph=in_graph)
        pairs = zip(timed.outputs, workload.expected, strict=True)
        error = max(relative_error(found, expected) for found, expected in pairs)
        tolerance = backend.tolerance if built.is_compared else None
        cells.append(Cell(timed.microseconds, "graph" if in_graph else "wall", error, tolerance))
    return built.detail, cells


def _time(calls: Sequence[Call], repeat: int, device: torch.device, *, in_graph: bool) -> Timed:
    return time_graph(calls, repeat) if in_graph else time_wall(calls, repeat, device)


def _time_dense(
    settings: KernelBenchSettings, workloads: Sequence[Workload], device: torch.device
) -> tuple[str, list[Spread | None]]:
    needed, free = dense_bytes(settings.shape, device), free_bytes(device)
    if 2 * needed > free:
        reason = f"left out: {needed / 2**30:.1f} GiB of dense weights are more than half of the free memory"
        return reason, [None] * len(workloads)
    dense = random_dense(settings.shape, device)
    in_graph = device.type == "cuda"
    found: list[Spread | None] = []
    try:
        for workload in workloads:
            calls = [dense.prepare(batch) for batch in workload.batches]
            found.append(_time(calls, settings.repeat, device, in_graph=in_graph).microseconds)
    except RuntimeError as error:
        # A floor that this torch cannot measure must not cost the times of the backends.
        return f"left out: {dense.method}: {str(error).splitlines()[0]}", [None] * len(workloads)
    dtype = str(dense.gate.dtype).removeprefix("torch.")
    return f"{dense.method}, {dtype}", found


def _row(
    settings: KernelBenchSettings,
    workload: Workload,
    cache: int,
    gemm: Spread | None,
    cells: dict[str, Cell],
) -> Row:
    touched = [touched_experts(batch) for batch in workload.batches]
    one = expert_bytes(settings.shape, settings.bits)
    experts = sum(map(len, touched)) / len(touched)
    distinct = {
        (number, expert) for number, members in zip(workload.layers, touched, strict=True) for expert in members
    }
    footprint = len(distinct) * one
    cold = is_cold(footprint, cache) if cache else None
    return Row(workload.tokens, len(touched), experts, experts * one, footprint, cold, gemm, cells)
