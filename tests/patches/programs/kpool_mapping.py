"""The slot mapping of the K-pool tail, from the runner's block tables through the model state to the builder."""

from __future__ import annotations

import interpreted  # isort: skip

import inspect
import types
from typing import Any

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backends.mla.indexer import KpoolTailBackend
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState
from vllm.v1.worker.utils import AttentionGroup

interpreted.bare("vllm.models.glm5next")
#: Memory that a GPU and a CPU both see; there is no GPU.
buffer_utils.is_uva_available = lambda: False

#: What no entry of a block table holds; a slot made of it was read outside the rows.
POISON = 1 << 20
_REQUESTS, _TOKENS, _ATTENTION_BLOCK = 4, 512, 640
_CPU = torch.device("cpu")


def tail_spec(drafts: int) -> Any:
    """The cache of a tail as the model asks for it, with `drafts` draft tokens a step."""
    try:
        from vllm.models.glm5next.common.attention import Glm5NextTailCache
    except ImportError:
        from vllm.models.glm5next.nvidia.attention import Glm5NextTailCache
    cache = object.__new__(Glm5NextTailCache)
    torch.nn.Module.__init__(cache)
    cache.head_dim, cache.prefix, cache._index_kpool = 128, "tail", 4
    cache.cache_config = types.SimpleNamespace(block_size=_ATTENTION_BLOCK)
    return cache.get_kv_cache_spec(types.SimpleNamespace(num_speculative_tokens=drafts))


class Runner:
    """Block tables, model state and builder of a tail group beside a group of ordinary pages."""

    def __init__(self, drafts: int) -> None:
        self.spec = tail_spec(drafts)
        sizes = [_ATTENTION_BLOCK, self.spec.block_size]
        # Until 0.31 a group could have smaller blocks in the kernels than in the cache.
        takes_kernel_sizes = "kernel_block_sizes" in inspect.signature(BlockTables).parameters
        self.tables = BlockTables(
            block_sizes=sizes,
            max_num_reqs=_REQUESTS,
            max_num_batched_tokens=_TOKENS,
            max_num_blocks_per_group=[1024, self.spec.max_num_blocks_per_req(None, 1 << 20)],
            device=_CPU,
            slot_mapping_enabled=[True, self.spec.uses_slot_mapping],
            **({"kernel_block_sizes": sizes} if takes_kernel_sizes else {}),
        )
        self._surround_rows_with_poison()
        scheduler = types.SimpleNamespace(max_num_batched_tokens=_TOKENS)
        config = types.SimpleNamespace(scheduler_config=scheduler, num_speculative_tokens=drafts)
        self.group = AttentionGroup(KpoolTailBackend, ["tail"], self.spec, 1)
        self.group.create_metadata_builders(config, _CPU)
        self.state = object.__new__(MambaHybridModelState)
        self.state.__dict__.update(
            vllm_config=config, max_model_len=1 << 20, model_config=types.SimpleNamespace(max_model_len=1 << 20),
            _align_mode=False, recoverssm=None,
            num_accepted_tokens_gpu=torch.ones(_REQUESTS, dtype=torch.int32),
        )  # fmt: skip

    def _surround_rows_with_poison(self) -> None:
        rows = self.tables.block_tables[1].gpu
        self.memory = torch.full((_REQUESTS * rows.shape[1] + (1 << 19),), POISON, dtype=torch.int32)
        placed = self.memory[: rows.numel()].view(rows.shape)
        placed.zero_()
        self.tables.block_tables[1].gpu = placed
        self.tables.init_block_table_layout_tensors()

    def own(self, request: int, block: int) -> None:
        self.tables.block_tables[1].gpu[request, 0] = block

    def generic(self, batch: types.SimpleNamespace) -> torch.Tensor:
        return self.tables.compute_slot_mappings(
            batch.idx_mapping, batch.query_start_loc, batch.positions, batch.num_tokens_after_padding
        )

    def step(self, batch: types.SimpleNamespace, mappings: torch.Tensor, capture: bool = False) -> torch.Tensor:
        tables = tuple(one.gpu[batch.idx_mapping.long()] for one in self.tables.block_tables)
        groups = types.SimpleNamespace(kv_cache_groups=[None, None])
        metadata = self.state.prepare_attn(
            batch, CUDAGraphMode.NONE, tables, mappings, [[], [self.group]], groups, for_capture=capture
        )
        return metadata["tail"].slot_mapping


def batch_of(requests: list[tuple[int, int, int]], prefilling: bool) -> types.SimpleNamespace:
    """A batch of (request, first position, tokens) rows."""
    lengths = np.array([tokens for _, _, tokens in requests], dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ends = torch.tensor([first + tokens for _, first, tokens in requests], dtype=torch.int32)
    positions = torch.cat([torch.arange(first, first + tokens) for _, first, tokens in requests])
    number, tokens = len(requests), int(starts[-1])
    return types.SimpleNamespace(
        idx_mapping=torch.tensor([request for request, _, _ in requests], dtype=torch.int32),
        num_reqs=number, num_reqs_after_padding=number, num_tokens=tokens, num_tokens_after_padding=tokens,
        num_scheduled_tokens=lengths, max_query_len=int(lengths.max()), num_draft_tokens_per_req=None,
        query_start_loc=torch.from_numpy(starts), query_start_loc_np=starts,
        seq_lens=ends, seq_lens_cpu_upper_bound=ends, dcp_local_seq_lens=None, prompt_lens=None,
        is_prefilling_np=np.full(number, prefilling), prefill_runs_as_decode_np=None, positions=positions,
    )  # fmt: skip


#: Prefill in chunks, a second and a third request, decode with and without drafts, far positions.
STEPS: list[tuple[list[tuple[int, int, int]], bool]] = [
    ([(0, 0, 200)], True),
    ([(0, 200, 3)], True),
    ([(0, 203, 1), (2, 0, 130)], True),
    ([(0, 204, 3), (2, 130, 3)], False),
    ([(2, 131, 3), (0, 206, 3), (1, 0, 7)], True),
    ([(0, 8191, 3), (1, 7, 1), (2, 65535, 3)], False),
    ([(0, 131071, 3), (1, 500000, 3)], False),
]
_BLOCKS = {0: 5, 1: 9, 2: 3}


def measure(drafts: int = 0) -> dict[str, Any]:
    runner = Runner(drafts)
    for request, block in _BLOCKS.items():
        runner.own(request, block)
    slots = runner.spec.block_size
    captured = runner.step(
        batch_of([(0, 0, 16)], False), runner.tables.get_dummy_slot_mappings(_TOKENS)[:, :16], capture=True
    )
    kept, wrong, recorded, outside = [captured], 0, 0, 0
    for requests, prefilling in STEPS:
        batch = batch_of(requests, prefilling)
        mappings = runner.generic(batch)
        outside += int((mappings[1] >= POISON).sum())
        found = runner.step(batch, mappings)
        kept.append(found)
        blocks = torch.cat([torch.full((tokens,), _BLOCKS[request]) for request, _, tokens in requests])
        expected = blocks * slots + batch.positions % slots
        wrong += int((found != expected).sum())
        # What a CUDA graph finds at the address that it recorded while it was captured.
        reach = min(len(captured), len(expected))
        recorded += int((captured[:reach] != expected[:reach]).sum())
    return {
        "slots": slots,
        "tokens": sum(tokens for requests, _ in STEPS for _, _, tokens in requests),
        "wrong": wrong,
        "addresses": len({one.data_ptr() for one in kept}),
        "recorded_wrong": recorded,
        "read_outside": outside,
    }


if __name__ == "__main__":
    interpreted.main(measure)
