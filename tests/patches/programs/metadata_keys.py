"""Which variants of the kernel that builds prefill metadata the warm-up compiles, and which ones serving asks for.

Triton itself is asked, not its interpreter, for the keys under which it would keep compiled kernels on a GB10.
Nothing is compiled: the hook that sees a missing variant answers that it has it.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import triton  # isort: skip  # Before what asks for the interpreter: Triton's own library is bound on import.
import interpreted

del os.environ["TRITON_INTERPRET"]

from triton.backends.compiler import GPUTarget

triton.backends.backends["cpu"].compiler = SimpleNamespace(supports_target=lambda target: False)

import torch
from vllm.v1.attention.backends.mla import indexer

#: Of the model, of one prefill step, and the number of requests in it.
KPOOL, STEP, REQUESTS = 4, 2048, 6


class _GB10:
    """What Triton asks of a driver before it compiles for compute capability 12.1."""

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def get_current_stream(device: int) -> int:
        return 0

    @staticmethod
    def get_current_target() -> GPUTarget:
        return GPUTarget("cuda", 121, 32)


def _config() -> Any:
    text = SimpleNamespace(index_kpool=KPOOL, compress_ratios=(KPOOL,))
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=STEP),
        model_config=SimpleNamespace(hf_config=text, hf_text_config=text),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, cp_kv_cache_interleave_size=1
        ),
    )


def _slices(context: int, budget: int) -> list[slice]:
    """How vLLM cuts one step of a prompt so that the logits of a part stay within `budget` MiB."""
    builder = indexer.DeepseekV32IndexerMetadataBuilder
    split = getattr(builder, "_split_indexer_prefill_chunks", None) or indexer.split_indexer_prefill_chunks
    pools, queries = torch.tensor([context // KPOOL]), torch.tensor([STEP])
    return [queries for _, queries in split(pools, queries, 40 * context, budget * 1024 * 1024)]


def _launch(queries: slice, context: int, request: int) -> None:
    """The lengths of a request that is not the first of the step do not lie at a multiple of 16 bytes."""
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32) * STEP
    lengths = torch.full((REQUESTS,), context, dtype=torch.int32)
    indexer.build_prefill_chunk_metadata(
        request,
        request + 1,
        starts,
        starts,
        lengths,
        lengths // KPOOL,
        lengths // KPOOL,
        torch.zeros(REQUESTS, 8, dtype=torch.int32),
        KPOOL,
        query_slice=queries,
    )


def keys(steps: list[list[int]]) -> dict[str, Any]:
    triton.runtime.driver.set_active(_GB10())
    asked: list[str] = []

    def note(*, key: str, **_: Any) -> bool:
        asked.append(key)
        return True

    triton.knobs.runtime.jit_cache_hook = note
    indexer._BUILD_PREFILL_CHUNK_METADATA_KERNEL.warmup(_config())
    warmed = sorted(set(asked))
    launched: list[dict[str, Any]] = []
    for context, budget in steps:
        for request in (0, 1):
            for queries in _slices(context, budget):
                asked.clear()
                _launch(queries, context, request)
                (key,) = asked
                launched.append({"step": [context, budget], "request": request, "start": queries.start, "key": key})
    return {"warmed": warmed, "launched": launched}


if __name__ == "__main__":
    interpreted.main(keys)
