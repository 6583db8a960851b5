"""The slot mapping of the MTP layer's K-pool tail in the later steps of a draft, which the speculator builds."""

from __future__ import annotations

import interpreted  # isort: skip

import types
from typing import Any

import torch
from kpool_mapping import Runner, batch_of
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

#: (request, position of its draft token, block of its tail).
DRAFTED = ((0, 203, 5), (1, 8191, 9), (2, 131072, 3))


def measure(drafts: int = 2) -> dict[str, Any]:
    runner = Runner(drafts)
    for request, _, block in DRAFTED:
        runner.own(request, block)
    batch = batch_of([(request, position, 1) for request, position, _ in DRAFTED], False)
    tables, number = runner.tables, batch.num_reqs
    for rows, source in zip(tables.input_block_tables, tables.block_tables, strict=True):
        rows[:number] = source.gpu[batch.idx_mapping.long()]
    runner.generic(batch)
    speculator = types.SimpleNamespace(
        block_tables=tables,
        input_buffers=types.SimpleNamespace(
            query_start_loc=batch.query_start_loc, seq_lens=batch.seq_lens, positions=batch.positions
        ),
        attn_groups=[[], [runner.group]],
        kv_cache_config=types.SimpleNamespace(kv_cache_groups=[None, None]),
        max_model_len=1 << 20,
        draft_max_seq_len=1 << 20,
        draft_is_prefilling=torch.zeros(number, dtype=torch.bool),
        dcp_size=1,
    )
    shape = types.SimpleNamespace(num_reqs=None, num_tokens=number, cg_mode=CUDAGraphMode.NONE)
    metadata = DraftModelSpeculator._build_attn_metadata(
        speculator, number, shape, batch.query_start_loc_np, batch.seq_lens_cpu_upper_bound, 1
    )
    slots = runner.spec.block_size
    return {
        "found": metadata["tail"].slot_mapping[:number].tolist(),
        "expected": [block * slots + position % slots for _, position, block in DRAFTED],
    }


if __name__ == "__main__":
    interpreted.main(measure)
