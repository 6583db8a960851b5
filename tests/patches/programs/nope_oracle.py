"""FlashInfer's SM120 sparse MLA as its sources of 0.6.18rc10 and 0.7.0.post1 state it, and attention from the formula.

Read in flashinfer/mla/_core.py, flashinfer/mla/_sparse_mla_sm120.py, csrc/sparse_mla_sm120*.cu and
attention/sparse_mla_sm120/{decode_dsv3_2,prefill}_kernel.cuh. Nothing here is vLLM's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

LATENT, ROPE, TILE, ROW = 512, 64, 128, 656
HEADS = (8, 16, 32, 64, 128)
DECODE_TOKENS = 64
CANDIDATES = 64


class ContractError(ValueError):
    """The kernel, or its Python side, would refuse the call."""


def pack(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """Rows of 656 bytes: 512 FP8 values, 4 scales in FP32 (one for 128 values), 64 values in BF16."""
    tiles = latent.float().view(-1, LATENT // TILE, TILE)
    scales = tiles.abs().amax(-1).clamp_min(1e-20) / 448.0
    values = (tiles / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(-1, LATENT)
    parts = (values, scales, rope.to(torch.bfloat16))
    return torch.cat([part.contiguous().view(torch.uint8).view(len(latent), -1) for part in parts], 1)


def unpack(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent and rotary part of rows, in FP64."""
    values = rows[:, :LATENT].contiguous().view(torch.float8_e4m3fn).double()
    scales = rows[:, LATENT : LATENT + 16].contiguous().view(torch.float32).double()
    rope = rows[:, LATENT + 16 :].contiguous().view(torch.bfloat16).double()
    return values * scales.repeat_interleave(TILE, 1), rope


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax over all keys, per head: query [H, D], keys [N, D], values [N, V]."""
    scores = query.double() @ keys.T * scale
    return scores.softmax(-1) @ values


def write_rows(pe_dims: Sequence[int]) -> Any:
    """vLLM's cache write for fp8_ds_mla, which takes rotary parts of these widths."""

    def concat_and_cache_mla(
        kv_c: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        scale: torch.Tensor,
    ) -> None:
        assert kv_cache_dtype == "fp8_ds_mla"
        if k_pe.shape[1] not in pe_dims:
            raise ContractError(f"pe_dim must be {' or '.join(map(str, pe_dims))} for fp8_ds_mla")
        rope = k_pe if k_pe.shape[1] else k_pe.new_zeros(len(k_pe), ROPE)
        used = slot_mapping >= 0
        count = len(slot_mapping)
        kv_cache.view(torch.uint8).view(-1, ROW)[slot_mapping[used]] = pack(kv_c[:count][used], rope[:count][used])

    return concat_and_cache_mla


class Kernel:
    """Stands for trtllm_batch_decode_with_kv_cache_mla; notes what it was asked and which rows it read."""

    def __init__(self, version: str) -> None:
        self.native_nope = version.startswith("0.7")
        self.lengths: list[int] = []
        self.chunks: list[int] = []
        self.rows_read: set[int] = set()
        self.width = 0

    def __call__(
        self,
        *,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        qk_rope_head_dim: int,
        kv_lora_rank: int,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor | None,
        sparse_mla_top_k: int,
        out: torch.Tensor,
        bmm1_scale: float,
        bmm2_scale: float,
        kv_scale_format: str,
        **_: Any,
    ) -> torch.Tensor:
        tokens, _one, heads, width = query.shape
        self._check_query(query, kv_lora_rank, qk_rope_head_dim, kv_scale_format)
        if block_tables.dtype != torch.int32 or tuple(block_tables.shape) != (tokens, 1, sparse_mla_top_k):
            raise ContractError(f"expects sparse block_tables shape, got {tuple(block_tables.shape)}")
        if kv_cache.dtype != torch.uint8 or kv_cache.shape[1] != 1 or kv_cache.shape[-1] != ROW or bmm2_scale != 1.0:
            raise ContractError(f"expects a packed cache, got {tuple(kv_cache.shape)}")
        self._check_kernel(tokens, heads, sparse_mla_top_k, kv_cache.shape[2], width)
        if seq_lens is not None and (seq_lens.dtype != torch.int32 or seq_lens.shape != (tokens,)):
            raise ContractError(f"expects a length for each token, got {seq_lens.dtype} {tuple(seq_lens.shape)}")
        self.width = sparse_mla_top_k
        self.lengths = [sparse_mla_top_k] * tokens if seq_lens is None else seq_lens.tolist()
        rows = kv_cache.contiguous().view(-1, ROW)
        for token in range(tokens):
            length = self.lengths[token]
            out[token, 0] = self._row(query[token, 0], rows, block_tables[token, 0], length, bmm1_scale).to(out.dtype)
        return out

    def _check_query(self, query: torch.Tensor, rank: int, rope: int, scales: str) -> None:
        if query.dtype != torch.bfloat16 or not query.is_contiguous():
            raise ContractError("expects a contiguous BF16 query")
        if (rank, rope) == (LATENT, 0) and not self.native_nope:
            raise ContractError("Native qk_rope_head_dim=0 TRTLLM-GEN MLA requires sparse_mla_top_k_lens")
        padded = (rank, rope, query.shape[-1]) == (LATENT, ROPE, LATENT + ROPE)
        native = (rank, rope, query.shape[-1], scales) == (LATENT, 0, LATENT, "arbitrary_fp32")
        if not (padded or (native and self.native_nope)):
            raise ContractError(f"expects rows of 512 + 64, got {rank} + {rope} and a query of {query.shape[-1]}")

    def _check_kernel(self, tokens: int, heads: int, top_k: int, page: int, query_width: int) -> None:
        if query_width == LATENT:
            fits = heads in HEADS and top_k <= 2176 and page == CANDIDATES
        elif tokens > DECODE_TOKENS:
            fits = heads in HEADS and top_k == 2048
        else:
            fits = heads in HEADS and top_k in (128, 512, 1024, 2048) and page == CANDIDATES
        if not fits:
            raise ContractError(f"no kernel for this shape: {tokens} tokens, {heads} heads, {top_k}, page {page}")

    def _row(
        self, query: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, length: int, scale: float
    ) -> torch.Tensor:
        """One token: chunks of 64 entries up to the length; -1 reads row 0 and weighs nothing beside a valid entry."""
        chunks = math.ceil(min(length, len(indices)) / CANDIDATES)
        self.chunks.append(chunks)
        entries = indices[: chunks * CANDIDATES].long()
        masked = (entries < 0) | (torch.arange(len(entries)) >= length)
        entries = torch.where(masked, 0, entries)
        self.rows_read.update(entries.tolist())
        latent, rope = unpack(rows[entries])
        keys = torch.cat([latent, rope], 1)[:, : query.shape[-1]]
        scores = (query.double() @ keys.T).masked_fill(masked, -1e30) * (scale * math.log2(math.e))
        weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
        return weights @ latent / weights.sum(-1, keepdim=True)
