from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

viterbi = pytest.importorskip("glm53_exl3.decode.viterbi", reason="the encoder needs numba", exc_type=ImportError)

Floats = npt.NDArray[np.float32]

# Bits of a state, bits of a symbol, samples; the first three use the step for few symbols, the others that for many.
SIZES = [(4, 1, 9), (6, 1, 10), (6, 2, 5), (4, 2, 5), (5, 2, 4), (6, 3, 4)]


def closed_states(symbols: tuple[int, ...], state_bits: int, bits: int) -> list[int]:
    """States of a circular stream of symbols: it is read until the state has forgotten where it began."""
    state, states = 0, []
    for symbol in symbols * (state_bits // (bits * len(symbols)) + 2):
        state = (state << bits | symbol) % 2**state_bits
        states.append(state)
    return states[-len(symbols) :]


def cost(samples: Floats, table: Floats, states: list[int]) -> float:
    return float(np.square(table[states].astype(np.float64) - samples).sum())


@pytest.mark.parametrize(("state_bits", "bits", "length"), SIZES)
def test_search_finds_the_best_of_all_streams(state_bits: int, bits: int, length: int) -> None:
    random = np.random.default_rng(state_bits * bits)
    table = random.standard_normal(2**state_bits).astype(np.float32)
    for _ in range(3):
        samples = random.standard_normal(length).astype(np.float32)
        best: dict[int, float] = {}
        for symbols in itertools.product(range(2**bits), repeat=length):
            states = closed_states(symbols, state_bits, bits)
            best[states[-1]] = min(best.get(states[-1], np.inf), cost(samples, table, states))
        assert len(best) == 2**state_bits
        for seam, expected in best.items():
            states = viterbi.closed_path(samples, table, bits, seam).tolist()
            symbols = tuple(state % 2**bits for state in states)
            assert closed_states(symbols, state_bits, bits) == states
            assert states[-1] == seam
            assert cost(samples, table, states) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("state_bits", "bits"), [(6, 1), (6, 2), (6, 3)])
def test_two_passes_are_close_to_the_best_seam(state_bits: int, bits: int) -> None:
    random = np.random.default_rng(1)
    table = random.standard_normal(2**state_bits).astype(np.float32)
    samples = random.standard_normal((20, 48)).astype(np.float32)
    streams = map(tuple, viterbi.encode(samples, table, bits).tolist())
    paths = (closed_states(stream, state_bits, bits) for stream in streams)
    found = [cost(x, table, path) for x, path in zip(samples, paths, strict=True)]
    best = [
        min(cost(x, table, viterbi.closed_path(x, table, bits, seam).tolist()) for seam in range(2**state_bits))
        for x in samples
    ]
    assert all(f >= b * (1 - 1e-4) for f, b in zip(found, best, strict=True))
    assert sum(found) <= 1.01 * sum(best)


def test_number_of_threads_does_not_change_the_result() -> None:
    random = np.random.default_rng(3)
    table = random.standard_normal(2**10).astype(np.float32)
    samples = random.standard_normal((7, 256)).astype(np.float32)
    expected = viterbi.encode(samples, table, 2, 1)
    for threads in (2, 3, 16):
        assert np.array_equal(viterbi.encode(samples, table, 2, threads), expected)


def test_nothing_encodes_to_nothing() -> None:
    table = np.zeros(64, np.float32)
    assert viterbi.encode(np.zeros((0, 256), np.float32), table, 2, 2).shape == (0, 256)


@pytest.mark.parametrize(("size", "bits"), [(64, 4), (48, 2), (64, 0)])
def test_a_table_must_fit_the_symbols(size: int, bits: int) -> None:
    with pytest.raises(ValueError, match="does not serve"):
        viterbi.encode(np.zeros((1, 256), np.float32), np.zeros(size, np.float32), bits)
