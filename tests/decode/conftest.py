from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


class Archive:
    """Arrays of one npz as tensors, by name."""

    def __init__(self, name: str) -> None:
        with np.load(GOLDEN / f"{name}.npz") as data:
            self.arrays = {key: data[key] for key in data.files}

    def __getitem__(self, name: str) -> Tensor:
        return torch.from_numpy(self.arrays[name])

    def __contains__(self, name: str) -> bool:
        return name in self.arrays


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Archive]:
    cache: dict[str, Archive] = {}

    def load(name: str) -> Archive:
        if name not in cache:
            cache[name] = Archive(name)
        return cache[name]

    return load


@pytest.fixture(scope="session")
def golden_errors() -> dict[str, float]:
    errors: dict[str, float] = json.loads((GOLDEN / "exl3_quantize_mse.json").read_text())
    return errors


@pytest.fixture
def states_of() -> Callable[[list[int]], list[int]]:
    """States of one tile by its words, from the whole bit stream as one integer of any size."""

    def states(words: list[int]) -> list[int]:
        bits, stream = len(words) // 16, 0
        for i in range(0, len(words), 2):
            stream = stream << 32 | (words[i + 1] & 0xFFFF) << 16 | words[i] & 0xFFFF
        length = 256 * bits
        twice = stream << length | stream
        return [twice >> (length - (t + 1) * bits) & 0xFFFF for t in range(256)]

    return states


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20)


@pytest.fixture
def random_words(generator: torch.Generator) -> Callable[..., Tensor]:
    def make(*shape: int) -> Tensor:
        return torch.randint(-32768, 32768, shape, dtype=torch.int16, generator=generator)

    return make


@pytest.fixture
def peak_error() -> Callable[[Tensor, Tensor], float]:
    """Largest difference relative to the largest expected magnitude."""

    def measure(found: Tensor, expected: Tensor) -> float:
        assert found.shape == expected.shape
        return float((found.double() - expected.double()).abs().max() / expected.double().abs().max())

    return measure
