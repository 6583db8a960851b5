"""The K-pool tail cache itself: seeded by prefill, updated by decode, pooled into the indexer's cache."""

from __future__ import annotations

import interpreted  # isort: skip

from typing import Any

import numpy as np
import torch

interpreted.bare("vllm.models.glm5next")
from kpool_mapping import tail_spec
from vllm.models.glm5next.nvidia.ops import kpool_compress as ops

_POOL, _DIM, _BLOCKS, _PAGE_ROWS = 4, 128, 8, 64
#: A tail lies in a page of the indexer's cache, which is much larger: 64 rows of 132 bytes, as 2-byte elements.
_PAGE = _PAGE_ROWS * (_DIM + 4) // 2
_UNTOUCHED = -7.0


def tail_cache(slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages, all untouched, and the tails in them: [blocks, K and gate, slots, 128]."""
    memory = torch.full((_BLOCKS, max(_PAGE, 2 * slots * _DIM)), _UNTOUCHED, dtype=torch.bfloat16)
    shape, stride = (_BLOCKS, 2, slots, _DIM), (memory.stride(0), slots * _DIM, _DIM, 1)
    return memory, memory.as_strided(shape, stride)


def keys(positions: range, request: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and gate of each position, [tokens, 128]; the same for the same request and position."""
    rows = [np.random.default_rng([request, position]).standard_normal((2, _DIM)) for position in positions]
    both = torch.tensor(np.array(rows), dtype=torch.bfloat16)
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def seeded() -> dict[str, Any]:
    """Two prompts in one batch: where the keys of their unfinished pools went."""
    slots = tail_spec(0).block_size
    memory, tails = tail_cache(slots)
    expected = tails.clone()
    prompts = [(3, range(8, 19)), (5, range(6))]
    key, gate, slot = [], [], []
    for block, positions in prompts:
        k, g = keys(positions, block)
        key.append(k)
        gate.append(g)
        slot += [block * slots + position % slots for position in positions]
        for position in positions[-_POOL:]:
            expected[block, 0, position % slots] = k[position - positions[0]]
            expected[block, 1, position % slots] = g[position - positions[0]]
    ops.kpool_seed_tail_cache(tails, torch.cat(key), torch.cat(gate), torch.tensor(slot), _POOL, _DIM)
    elsewhere = memory.clone()
    for block, _ in prompts:
        elsewhere[block] = _UNTOUCHED
    return {
        "tokens": 2 * _POOL,
        "wrong": int((tails != expected).any(dim=-1).sum()),
        "written_elsewhere": int((elsewhere != _UNTOUCHED).sum()),
    }


def pooled_reference(request: int, pool: int, ape: torch.Tensor) -> torch.Tensor:
    """A compressed key in float64: keys weighted by the softmax of their gates, Walsh-Hadamard over sqrt(128)."""
    key, gate = (one.double() for one in keys(range(pool * _POOL, (pool + 1) * _POOL), request))
    weight = torch.softmax(gate + ape.double(), dim=0)
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while hadamard.shape[0] < _DIM:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    return (weight * key).sum(0) @ hadamard / _DIM**0.5


def decoded(drafts: int, rejected: list[int]) -> dict[str, Any]:
    """Decode 2 requests with drafts; `rejected[i]` drafts of step i are rejected and computed again from other keys."""
    slots = tail_spec(drafts).block_size
    _, tails = tail_cache(slots)
    ape = torch.tensor(np.random.default_rng(0).standard_normal((_POOL, _DIM)), dtype=torch.float32)
    cache = torch.zeros(4, _PAGE_ROWS, _DIM + 4, dtype=torch.uint8)
    blocks, first, width = (3, 5), [8, 9], drafts + 1
    for row, block in enumerate(blocks):
        k, g = keys(range(first[row]), row)
        slot = torch.tensor([block * slots + position % slots for position in range(first[row])])
        ops.kpool_seed_tail_cache(tails, k, g, slot, _POOL, _DIM)
    done = list(first)
    for lost in rejected:
        kept = width - lost
        key, gate = torch.empty(2, width, _DIM, dtype=torch.bfloat16), torch.empty(2, width, _DIM, dtype=torch.bfloat16)
        place, tail, position = (torch.empty(2, width, dtype=torch.int32) for _ in range(3))
        for row, block in enumerate(blocks):
            here = range(done[row], done[row] + width)
            key[row], gate[row] = keys(here, row)
            # A rejected draft is another token than the one that the position gets in the end.
            key[row, kept:], gate[row, kept:] = (one[kept:] for one in keys(here, 100 + row))
            position[row] = torch.tensor(list(here))
            tail[row] = torch.tensor([block * slots + one % slots for one in here])
            place[row] = torch.tensor(
                [row * _PAGE_ROWS + one // _POOL if one % _POOL == _POOL - 1 else -1 for one in here]
            )
        ops.kpool_decode_update_and_maybe_write_cache_batched(
            cache, tails, tail, key, gate, ape, place, position, _POOL, _DIM
        )
        done = [one + kept for one in done]
    errors = []
    for row in range(2):
        page = cache[row].reshape(-1)
        values = page[: _PAGE_ROWS * _DIM].view(torch.float8_e4m3fn).double().view(_PAGE_ROWS, _DIM)
        scales = page[_PAGE_ROWS * _DIM :].view(torch.float32).double()
        for pool in range(first[row] // _POOL, done[row] // _POOL):
            reference = pooled_reference(row, pool, ape)
            found = values[pool] * scales[pool]
            # The median: Triton's interpreter loses the carry when a value is rounded up to the next power of two.
            errors.append(float((found - reference).abs().median() / reference.square().mean().sqrt()))
    return {"slots": slots, "pools": len(errors), "worst_error": max(errors), "best_error": min(errors)}


def measure(drafts: int) -> dict[str, Any]:
    return {
        "seeded": seeded(),
        "accepted": decoded(drafts, [0] * 4),
        "rejected": decoded(drafts, [0, drafts, 1, drafts, drafts, 1, 0, drafts]),
    }


if __name__ == "__main__":
    interpreted.main(measure)
