"""Which backend is found right, and which is the fastest for each batch size."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import pytest
import torch

from glm53_exl3.kernels import proof
from glm53_exl3.kernels.proof import Trial, fastest, table, try_out
from glm53_exl3.kernels.reference import ReferenceKernel
from kernels.test_reference import layer


def trial(*microseconds: float, error: float = 1e-3) -> Trial:
    return Trial(error, dict(zip((1, 8, 128), microseconds, strict=False)))


def test_one_that_is_fastest_everywhere_has_no_bound() -> None:
    assert fastest({"a": trial(1, 2, 3), "b": trial(2, 3, 4)}) == [(math.inf, "a")]


def test_ranges_change_in_the_geometric_middle_of_two_sizes() -> None:
    assert fastest({"a": trial(1, 9, 9), "b": trial(2, 3, 4)}) == [(2, "a"), (math.inf, "b")]
    assert fastest({"a": trial(1, 9, 1), "b": trial(2, 3, 4)}) == [(2, "a"), (32, "b"), (math.inf, "a")]


def test_a_wrong_one_is_never_the_fastest() -> None:
    wrong = Trial(0.5, {})
    assert fastest({"a": wrong, "b": trial(9, 9, 9)}) == [(math.inf, "b")]
    assert fastest({"a": wrong}) == []
    assert not Trial(math.inf, {}).is_right


def test_table_says_what_is_right_and_what_is_wrong() -> None:
    lines = table({"a": trial(10.4, 20, 30), "b": Trial(0.25, {})}).splitlines()
    assert lines[0] == "  a          right, error 1.0e-03; microseconds by tokens 1: 10, 8: 20, 128: 30"
    assert lines[1] == "  b          WRONG, error 2.5e-01"


@dataclass
class Changed:
    """The reference, its output times a factor in batches above a size."""

    reference: ReferenceKernel
    factor: float
    above: int = 0
    backend: str = "changed"
    keeps_packed_weights: bool = True

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        output = self.reference(x, topk_ids, topk_weights)
        return output * self.factor if len(x) > self.above else output


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


@pytest.mark.usefixtures("on_cpu")
def test_kernels_are_compared_with_the_reference_at_small_and_large_batches() -> None:
    packed, _ = layer()
    reference = ReferenceKernel(packed, torch.float32, "load")
    kernels = {
        "right": Changed(reference, 1.0),
        "rough": Changed(reference, 1.02),
        "lost": Changed(reference, float("nan")),
        "only large ones wrong": Changed(reference, 1.1, above=proof.CHECKED[1]),
    }
    trials = try_out(kernels, packed, top_k=2, max_tokens=40)
    assert [name for name, one in trials.items() if one.is_right] == ["right"]
    assert 0 < trials["right"].error < 5e-3
    assert list(trials["right"].microseconds) == [1, 2, 8, 32]
    assert all(value > 0 for value in trials["right"].microseconds.values())
    # What is wrong is not worth the time.
    assert trials["rough"].microseconds == {}
    assert trials["lost"].error == math.inf


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 6), (0.03, 2)])
def test_a_long_call_is_timed_once_after_it_was_warm(seconds: float, calls: int) -> None:
    made: list[int] = []

    class Slow:
        backend, keeps_packed_weights = "slow", True

        def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
            made.append(len(x))
            time.sleep(seconds)
            return x

    nothing = torch.zeros(3, 1)
    assert proof._microseconds(Slow(), (nothing, nothing, nothing)) >= seconds * 1e6
    assert made == [3] * calls
