"""Where the pooled keys of a long prompt go in the indexer's cache, by vLLM's own metadata builder.

The builder is handed what vLLM hands it: the spec in units of the page in which the cache is stored, and a block table
in units of the kernel's block, which until 0.31.0 is smaller than that page and since 0.32.0 is that page.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import interpreted
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.mla import indexer
from vllm.v1.kv_cache_interface import MLAAttentionSpec

KPOOL = 4
#: Tokens in a block of the manager, in a page of the indexer's cache (64 pooled keys) and in a block of the kernel.
BLOCK, PAGE, KERNEL_BLOCK = 6656, 64 * KPOOL, 64
CHUNK, CONTEXT = 512, 262_144


def _config() -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=CHUNK, max_num_seqs=4, async_scheduling=False),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        model_config=SimpleNamespace(max_model_len=CONTEXT, hf_config=None, hf_text_config=None),
        attention_config=SimpleNamespace(
            resolve_indexer_kv_dtype=lambda default: default, sparse_mla_prefill_workspace_factor=5
        ),
        speculative_config=None,
        num_speculative_tokens=0,
        cache_config=SimpleNamespace(block_size=BLOCK),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
    )


def _builder() -> indexer.DeepseekV32IndexerMetadataBuilder:
    indexer.num_compute_units = lambda _: 48
    spec = MLAAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=132, dtype=torch.uint8, tokens_per_state=KPOOL)
    builder = indexer.DeepseekV32IndexerMetadataBuilder(
        spec, ["indexer"], _config(), torch.device("cpu"), block_table_width=CONTEXT // KERNEL_BLOCK
    )
    if hasattr(builder, "set_kernel_block_size"):
        builder.set_kernel_block_size(KERNEL_BLOCK)
    return builder


def _table(blocks: list[int], unit: int) -> torch.Tensor:
    """What the runner makes of a request's blocks: each is named once for every kernel block of `unit` tokens in it."""
    inside = BLOCK // unit
    ids = (torch.tensor(blocks)[:, None] * inside + torch.arange(inside)).flatten().to(torch.int32)
    assert len(ids) >= CONTEXT // unit
    return ids[None, : CONTEXT // unit].contiguous()


def _chunk(builder: indexer.DeepseekV32IndexerMetadataBuilder, table: torch.Tensor, start: int) -> dict[str, Any]:
    """The step of a prefill that computes positions `start` to `start + CHUNK`."""
    ends = torch.tensor([0, CHUNK], dtype=torch.int32)
    lengths = torch.tensor([start + CHUNK], dtype=torch.int32)
    metadata = builder.build(
        0,
        CommonAttentionMetadata(
            query_start_loc=ends,
            query_start_loc_cpu=ends,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=1,
            num_actual_tokens=CHUNK,
            max_query_len=CHUNK,
            max_seq_len=start + CHUNK,
            block_table_tensor=table,
            slot_mapping=torch.arange(CHUNK),  # Of the latent cache; its values are of no use to the indexer's.
        ),
    )
    read = metadata.prefill.chunks[0].block_table[0]
    return {"written": metadata.slot_mapping.tolist(), "read": read.tolist()}


def slots(starts: list[int], blocks: list[int]) -> dict[str, Any]:
    builder = _builder()
    table = _table(blocks, KERNEL_BLOCK if hasattr(builder, "kernel_block_size") else PAGE)
    return {
        "block": BLOCK,
        "page": PAGE,
        "chunk": CHUNK,
        "kpool": KPOOL,
        "chunks": [_chunk(builder, table, start) for start in starts],
    }


if __name__ == "__main__":
    interpreted.main(slots)
