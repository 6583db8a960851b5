"""Proof of compiled backends at start: each against the reference on real weights of a layer, and how long it takes.

What a GPU, a driver or a build gets wrong shows here, before a user's first answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from glm53_exl3.kernels.accuracy import TOLERANCE, relative_error
from glm53_exl3.kernels.interface import MoEKernel, PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel

#: Rows of the batches that are compared: one, a few, and enough for each backend's way to run many.
CHECKED: Final = (1, 7, 180)
#: Experts that they go to: the reference decodes each of them.
CHECKED_EXPERTS: Final = 12
#: Batch sizes that are timed.
TIMED: Final = (1, 2, 8, 32, 128, 512, 2048)
_REPEATS: Final = 5
#: A call that takes longer is timed only twice, so that all takes under three seconds.
_LONG_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Trial:
    """What was found about a backend.

    Attributes:
        error: largest error of an output relative to its largest value, of all batches.
        microseconds: of a call, median, by tokens.
    """

    error: float
    microseconds: Mapping[int, float]

    @property
    def is_right(self) -> bool:
        """Whether its outputs are those of the reference."""
        return self.error <= TOLERANCE


def try_out(kernels: Mapping[str, MoEKernel], layer: PackedLayer, top_k: int, max_tokens: int) -> dict[str, Trial]:
    """Compare and time the kernels of one layer.

    Args:
        kernels: by name of the backend.
        layer: its weights, on a GPU.
        top_k: experts a token.
        max_tokens: largest batch of the engine.
    """
    generator = torch.Generator(layer.gate.device).manual_seed(0)
    checked = _batch(layer, sum(CHECKED), min(top_k, layer.gate.num_experts), CHECKED_EXPERTS, generator)
    x, ids, weights = checked
    expected = ReferenceKernel(layer, torch.float32, "call")(x.float(), ids, weights)
    counts = [tokens for tokens in TIMED if tokens <= max_tokens] or [1]
    timed = {
        tokens: _batch(layer, tokens, min(top_k, layer.gate.num_experts), layer.gate.num_experts, generator)
        for tokens in counts
    }
    found: dict[str, Trial] = {}
    for name, kernel in kernels.items():
        error = _largest_error(kernel, checked, expected)
        times = {tokens: _microseconds(kernel, batch) for tokens, batch in timed.items()} if error <= TOLERANCE else {}
        found[name] = Trial(error, times)
    return found


def fastest(trials: Mapping[str, Trial]) -> list[tuple[float, str]]:
    """The fastest right backend of each range of batches: up to so many tokens, and its name; the last has no bound.

    Between two timed sizes the bound is where the geometric middle of them is. Empty when no backend is right.
    """
    right = {name: trial for name, trial in trials.items() if trial.is_right}
    if not right:
        return []
    counts = sorted(next(iter(right.values())).microseconds)
    winners = [min(right, key=lambda name: right[name].microseconds[tokens]) for tokens in counts]
    ranges: list[tuple[float, str]] = []
    for number, winner in enumerate(winners):
        is_last = number + 1 == len(counts)
        if is_last or winners[number + 1] != winner:
            bound = math.inf if is_last else math.floor(math.sqrt(counts[number] * counts[number + 1]))
            ranges.append((bound, winner))
    return ranges


def table(trials: Mapping[str, Trial]) -> str:
    """What was found, a line for each backend."""
    lines = []
    for name, trial in trials.items():
        times = ", ".join(f"{tokens}: {time:.0f}" for tokens, time in trial.microseconds.items())
        verdict = f"right, error {trial.error:.1e}" if trial.is_right else f"WRONG, error {trial.error:.1e}"
        lines.append(f"  {name:<10} {verdict}" + (f"; microseconds by tokens {times}" if times else ""))
    return "\n".join(lines)


_Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _batch(layer: PackedLayer, tokens: int, top_k: int, experts: int, generator: torch.Generator) -> _Batch:
    """Activations bf16 `[T, hidden]`, ids int32 and weights fp32 `[T, top_k]`; experts spread over all there are."""
    device, all_experts = layer.gate.device, layer.gate.num_experts
    used = min(max(experts, top_k), all_experts)
    x = torch.randn(tokens, layer.gate.suh.shape[1], device=device, generator=generator).bfloat16()
    scores = torch.rand(tokens, used, device=device, generator=generator)
    weights, ids = scores.topk(top_k)
    spread = ids * all_experts // used
    return x, spread.int(), weights / weights.sum(-1, keepdim=True)


def _largest_error(kernel: MoEKernel, batch: _Batch, expected: torch.Tensor) -> float:
    begin, errors = 0, []
    for tokens in CHECKED:
        part = [one[begin : begin + tokens] for one in batch]
        errors.append(relative_error(kernel(*part), expected[begin : begin + tokens]))
        begin += tokens
    return max(errors)


def _microseconds(kernel: MoEKernel, batch: _Batch) -> float:
    def seconds() -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        kernel(*batch)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    samples = [seconds(), seconds()][1:]
    while samples[0] < _LONG_SECONDS and len(samples) < _REPEATS:
        samples.append(seconds())
    return median(samples) * 1e6
