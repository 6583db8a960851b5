"""Search of the best tail-biting path through a trellis, compiled by numba.

Importing this module needs numba; `encoder.py` does so on first use.

The state after a symbol is ((state << K) | symbol) mod 2**L, with L = 16 for EXL3, and the cost of a state at time t is
(table[state] - sample[t])**2. States that agree in their low L - K bits have the same successors, so a step needs one
number for each such class instead of one for each state: with J = 2**(L - K) classes and m the best cost of a class,

    m'[j] = min over h in [0, 2**K) of m[s >> K] + (table[s] - sample)**2,  s = j + h * J.

A tail-biting path starts in the state it ends in. The search follows two passes (turboderp-org/exllamav3 1.4.5,
`quant/quantize.cu` does the same): the first leaves both ends free and has the seam in the middle of its sequence,
where the ends no longer matter; the second starts and ends in the state found at the seam.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numba
import numpy as np
import numpy.typing as npt

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Cost of a state that a path may not start in. Finite, since fast floating point assumes that no infinity occurs.
_UNREACHABLE: Final = np.float32(1e30)
_BEYOND: Final = np.float32(2e30)
#: Samples beyond this count as this: twice the range of every codebook. It keeps path costs small enough for fp32.
SAMPLE_LIMIT: Final = 8.0
#: Classes updated at a time, so that the running minimum stays in the first-level cache.
_BLOCK: Final = 1024
_FREE: Final = -1

Floats = npt.NDArray[np.float32]
Symbols = npt.NDArray[np.uint8]
States = npt.NDArray[np.int32]


def _compiled(function: _Function) -> _Function:
    options = {"nogil": True, "fastmath": True, "boundscheck": False}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # numba refuses to cache where neither the package nor the home directory can be written.
        compiled = numba.njit(**options)(function)
    return compiled  # type: ignore[no-any-return]


@_compiled
def _start(table: Floats, classes: Floats, sample: Any, best: Floats, choice: Symbols) -> None:
    for i in range(best.size):
        distance = table[i] - sample
        best[i] = classes[i] + distance * distance
        choice[i] = 0


@_compiled
def _relax(table: Floats, classes: Floats, sample: Any, best: Floats, choice: Symbols, candidate: Any) -> None:
    for i in range(best.size):
        distance = table[i] - sample
        cost = classes[i] + distance * distance
        # Both old values are loaded whatever the comparison says: a load in one branch keeps LLVM from vectorizing.
        old_cost, old_choice = best[i], choice[i]
        better = cost < old_cost
        best[i] = cost if better else old_cost
        choice[i] = candidate if better else old_choice


@_compiled
def _relax_from_one(table: Floats, base: Any, sample: Any, best: Floats, choice: Symbols, candidate: Any) -> None:
    for i in range(best.size):
        distance = table[i] - sample
        cost = base + distance * distance
        old_cost, old_choice = best[i], choice[i]
        better = cost < old_cost
        best[i] = cost if better else old_cost
        choice[i] = candidate if better else old_choice


@_compiled
def _step_wide(
    table: Floats, bits: int, sample: Any, classes: Floats, scratch: Floats, choice: Symbols, updated: Floats
) -> None:
    # For few symbols: `table` is in order [symbol, class], and consecutive states of one symbol have consecutive
    # predecessor classes. `choice` stays in order [symbol, predecessor].
    symbols = 1 << bits
    total = classes.size
    span = total >> bits
    for begin in range(0, span, _BLOCK):
        size = min(_BLOCK, span - begin)
        best = scratch[:size]
        for symbol in range(symbols):
            row = symbol * total + begin
            chosen = choice[symbol * span + begin : symbol * span + begin + size]
            _start(table[row : row + size], classes[begin : begin + size], sample, best, chosen)
            for high in range(1, symbols):
                shift = high * span
                _relax(
                    table[row + shift : row + shift + size],
                    classes[shift + begin : shift + begin + size],
                    sample,
                    best,
                    chosen,
                    np.uint8(high),
                )
            target = updated[begin * symbols + symbol :]
            for i in range(size):
                target[i * symbols] = best[i]


@_compiled
def _step_narrow(table: Floats, bits: int, sample: Any, classes: Floats, choice: Symbols, updated: Floats) -> None:
    # For many symbols: `table` is in order of states, and the states of one predecessor class are consecutive.
    symbols = 1 << bits
    total = classes.size
    span = total >> bits
    updated[:] = _BEYOND
    for i in range(span):
        begin = i * symbols
        best = updated[begin : begin + symbols]
        chosen = choice[begin : begin + symbols]
        for high in range(symbols):
            row = high * total + begin
            _relax_from_one(table[row : row + symbols], classes[high * span + i], sample, best, chosen, np.uint8(high))


@_compiled
def _is_wide(bits: int, state_bits: int) -> bool:
    return 3 * bits <= state_bits


@_compiled
def _search(
    samples: Floats,
    table: Floats,
    bits: int,
    state_bits: int,
    seam: int,
    classes: Floats,
    updated: Floats,
    choices: Symbols,
    path: States,
) -> None:
    # Fills `path` with the states of the best path; with `seam` >= 0 of those that start from and end in that state.
    # Every array is preallocated: `table` in the order of the step, `choices` [len(samples), classes].
    length = samples.size
    total = classes.size
    span = total >> bits
    wide = _is_wide(bits, state_bits)
    scratch = np.empty(_BLOCK, np.float32)
    if seam < 0:
        classes[:] = np.float32(0.0)
    else:
        classes[:] = _UNREACHABLE
        classes[seam & (total - 1)] = np.float32(0.0)
    steps = length if seam < 0 else length - 1
    for t in range(steps):
        if wide:
            _step_wide(table, bits, samples[t], classes, scratch, choices[t], updated)
        else:
            _step_narrow(table, bits, samples[t], classes, choices[t], updated)
        classes, updated = updated, classes
    state = seam
    if seam < 0:
        state = int(np.argmin(classes))
    else:
        path[length - 1] = seam
        state = seam >> bits
    # `state` now is the class that the last searched state belongs to.
    for t in range(steps - 1, -1, -1):
        where = state
        if wide:
            where = (state & ((1 << bits) - 1)) * span + (state >> bits)
        path[t] = state + total * np.int64(choices[t, where])
        state = path[t] >> bits


@_compiled
def _encode_range(
    samples: Floats, table: Floats, bits: int, state_bits: int, context: int, begin: int, end: int, symbols: Symbols
) -> None:
    length = samples.shape[1]
    total = 1 << (state_bits - bits)
    classes = np.empty(total, np.float32)
    updated = np.empty(total, np.float32)
    choices = np.empty((max(length, 2 * context), total), np.uint8)
    path = np.empty(max(length, 2 * context), np.int32)
    around = np.empty(2 * context, np.float32)
    for tile in range(begin, end):
        for i in range(2 * context):
            around[i] = samples[tile, (i - context) % length]
        _search(around, table, bits, state_bits, _FREE, classes, updated, choices, path)
        seam = path[context - 1]
        _search(samples[tile], table, bits, state_bits, seam, classes, updated, choices, path)
        for i in range(length):
            symbols[tile, i] = path[i] & ((1 << bits) - 1)


def _ordered_table(table: Floats, bits: int, state_bits: int) -> Floats:
    if not _is_wide(bits, state_bits):
        return table
    return np.ascontiguousarray(table.reshape(-1, 1 << bits).T).reshape(-1)


def _state_bits(table: Floats, bits: int) -> int:
    state_bits = table.size.bit_length() - 1
    if table.ndim != 1 or table.size != 1 << state_bits or not 0 < 2 * bits <= state_bits:
        raise ValueError(f"a table of {table.shape} does not serve {bits} bits a symbol")
    return state_bits


def closed_path(samples: Floats, table: Floats, bits: int, seam: int) -> States:
    """States of the best path that starts from and ends in one state; exact up to rounding.

    Args:
        samples: fp32 `[n]`, n >= 2.
        table: fp32 `[2**L]`, value of each state; L is at least 2 * bits.
        bits: bits a symbol.
        seam: the state before the first and after the last sample; both ends must be compatible, which holds for
            n * bits >= L.

    Returns:
        int32 `[n]`.
    """
    state_bits = _state_bits(table, bits)
    total = table.size >> bits
    path = np.empty(samples.size, np.int32)
    _search(
        samples,
        _ordered_table(table, bits, state_bits),
        bits,
        state_bits,
        seam,
        np.empty(total, np.float32),
        np.empty(total, np.float32),
        np.empty((samples.size, total), np.uint8),
        path,
    )
    return path


def encode(samples: Floats, table: Floats, bits: int, threads: int = 1, context: int | None = None) -> Symbols:
    """Symbols of good tail-biting paths, one for each row of samples.

    Rows are independent and split over threads; the result does not depend on their number.

    Args:
        samples: fp32 `[n, length]`, finite, of magnitude up to `SAMPLE_LIMIT`.
        table: fp32 `[2**L]`, value of each state; L is at least 2 * bits and at most length * bits.
        bits: bits a symbol.
        threads: threads to use.
        context: samples on each side of the seam that the first pass looks at; half of `length` by default.

    Returns:
        uint8 `[n, length]`, each below 2**bits.
    """
    state_bits = _state_bits(table, bits)
    count, length = samples.shape
    symbols = np.empty((count, length), np.uint8)
    context = length // 2 if context is None else context
    ordered = _ordered_table(table, bits, state_bits)
    workers = max(1, min(threads, count))
    bounds = [count * worker // workers for worker in range(workers + 1)]

    def work(worker: int) -> None:
        _encode_range(samples, ordered, bits, state_bits, context, bounds[worker], bounds[worker + 1], symbols)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return symbols
