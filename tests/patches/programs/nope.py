"""Sparse MLA of the SM120 backend over a packed cache, and which entries the K-pool indexer hands to it."""

from __future__ import annotations

import interpreted  # Before vLLM.
import math
import sys
import types
from typing import Any

import nope_platform
import nope_selection
import torch
from nope_oracle import LATENT, ROPE, ROW, ContractError, Kernel, attention, pack, unpack, write_rows
from vllm import _custom_ops
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.utils import flashinfer as vllm_flashinfer
from vllm.v1.attention.backends.mla import flashinfer_mla_sparse_sm120 as sm120

PAGES, HEADS, SCALE = 45, 8, 256**-0.5
#: Block 0 belongs to no request. The first request is long, the second has a few tokens.
BLOCKS = ([*range(3, 36)], [40, 38])
SHORT = 70


def layer(rope: int, width: int, tokens: int, rank: int = LATENT) -> tuple[Any, torch.Tensor]:
    """The implementation that the backend builds for a layer, and its top-k buffer."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith("vllm") and hasattr(module, "get_tensor_model_parallel_world_size"):
            module.get_tensor_model_parallel_world_size = lambda: 1
    vllm_flashinfer.has_flashinfer_sparse_mla_sm120 = lambda: True
    sm120._get_workspace_buffer = lambda device: torch.zeros(16, dtype=torch.int8, device=device)
    buffer = torch.full((tokens, width), -1, dtype=torch.int32)
    given = {
        "q_lora_rank": 1536,
        "kv_lora_rank": rank,
        "qk_nope_head_dim": 256 - rope,
        "qk_rope_head_dim": rope,
        "qk_head_dim": 256,
        "v_head_dim": 256,
        "kv_b_proj": None,
        "topk_indices_buffer": buffer,
    }
    with set_current_vllm_config(VllmConfig()):
        sizes = (HEADS, rank + rope, SCALE, 1, None, None, "fp8_ds_mla", None, "decoder", None)
        built = sm120.FlashInferMLASparseSM120Impl(*sizes, **given)
    built.kv_scale_format = sm120._kv_scale_format_for_model("glm5_next")
    return built, buffer


def row(request: int, position: int, page: int) -> int:
    return BLOCKS[request][position // page] * page + position % page


def long_context(page: int) -> int:
    return len(BLOCKS[0]) * page - 3


def cache_of(built: Any, rope: int, version: str, page: int) -> dict[str, Any]:
    """A cache of NaN in which row 0 and the rows of both requests are written, theirs by the layer itself."""
    torch.manual_seed(0)
    cache = torch.full((PAGES, page, ROW), 0xFF, dtype=torch.uint8)
    cache[0, 0] = pack(torch.full((1, LATENT), 3.0), torch.zeros(1, ROPE))[0]
    long = [row(0, at, page) for at in range(long_context(page))]
    slots = torch.tensor(long + [row(1, at, page) for at in range(SHORT)] + [-1])
    latent = torch.randn(len(slots), LATENT).to(torch.bfloat16)
    keys = torch.randn(len(slots), 1, rope).to(torch.bfloat16)
    _custom_ops.concat_and_cache_mla = write_rows((64, 0) if version.startswith("0.7") else (64,))
    refused = ""
    try:
        built.do_kv_cache_update(latent, keys, cache, slots, "fp8_ds_mla", torch.ones(1))
    except ContractError as error:
        refused = str(error)
    padded = torch.nn.functional.pad(keys[:, 0], (0, ROPE - rope))
    expected = torch.full_like(cache, 0xFF)
    expected[0, 0] = cache[0, 0]
    expected.view(-1, ROW)[slots[:-1]] = pack(latent, padded)[:-1]
    same = bool((cache == expected).all())
    return {"refused": refused, "rows as expected": same, "cache": expected}


def selections(buffer: torch.Tensor, page: int) -> list[tuple[int, list[int]]]:
    """Fill the buffer for six tokens: request and positions of each; a pool tail stands behind unused history."""
    width, context = buffer.shape[1], long_context(page)
    long = sorted(torch.randperm(context)[:2047].tolist())
    gap = [*range(8), *[-1] * (width - 11), 64, 65, 66]
    far = [5, 33 * page + 3, 7]
    rows = [
        (0, long),
        (1, gap),
        (1, []),
        (1, far),
        (0, [context - 1]),
        (1, [*range(SHORT)]),
    ]
    for token, (_, positions) in enumerate(rows):
        buffer[token, : len(positions)] = torch.tensor(positions, dtype=torch.int32)
    # Behind the last column of the block table is no entry.
    return [(request, [at for at in positions if 0 <= at < 33 * page]) for request, positions in rows]


def attend(rope: int, width: int, version: str, page: int) -> dict[str, Any]:
    """What the layer answers for six tokens, against attention over exactly the selected positions."""
    built, buffer = layer(rope, width, 6)
    found = cache_of(built, rope, version, page)
    cache = found.pop("cache")
    wanted = selections(buffer, page)
    kernel = Kernel(version)
    vllm_flashinfer.flashinfer_trtllm_batch_decode_with_kv_cache_mla = kernel
    table = torch.zeros(2, 33, dtype=torch.int32)
    for request, blocks in enumerate(BLOCKS):
        table[request, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    metadata = types.SimpleNamespace(
        req_id_per_token=torch.tensor([request for request, _ in wanted], dtype=torch.int32),
        block_table=table,
        block_size=page,
        topk_tokens=2048,
        num_decode_tokens=len(wanted),
    )
    query = (torch.randn(len(wanted), HEADS, LATENT) * 0.3).to(torch.bfloat16)
    rotary = torch.randn(len(wanted), HEADS, rope).to(torch.bfloat16)
    try:
        answer, _ = built.forward_mqa((query, rotary), cache, metadata, None)
    except ContractError as error:
        return found | {"forward refused": str(error)}
    return (
        found | {"forward refused": ""} | compared(answer, query, rotary, cache, wanted) | asked(kernel, cache, wanted)
    )


def rows_of(cache: torch.Tensor, selection: tuple[int, list[int]]) -> torch.Tensor:
    request, positions = selection
    return torch.tensor([row(request, at, cache.shape[1]) for at in positions])


def compared(
    answer: torch.Tensor,
    query: torch.Tensor,
    rotary: torch.Tensor,
    cache: torch.Tensor,
    wanted: list[tuple[int, list[int]]],
) -> dict[str, Any]:
    """Largest difference to attention over the selected rows (-1 for NaN), and what rows without any got."""
    errors, empty = [], []
    for token, selection in enumerate(wanted):
        if not selection[1]:
            empty.append(float(answer[token].float().abs().max()))
            continue
        latent, rope = unpack(cache.view(-1, ROW)[rows_of(cache, selection)])
        keys = torch.cat([latent, rope[:, : rotary.shape[-1]]], 1)
        exact = attention(torch.cat([query[token], rotary[token]], -1), keys, latent, SCALE)
        errors.append(float((answer[token].double() - exact).abs().max()))
    largest = max(errors) if all(map(math.isfinite, errors)) else -1.0
    return {"shape": list(answer.shape), "largest error": largest, "empty rows": empty}


def asked(kernel: Kernel, cache: torch.Tensor, wanted: list[tuple[int, list[int]]]) -> dict[str, Any]:
    """How the kernel was called, and whether it read rows of the cache that nothing selects, row 0 excepted."""
    allowed = {0}.union(*(rows_of(cache, selection).tolist() for selection in wanted))
    beyond = len(kernel.rows_read - allowed)
    return {"width": kernel.width, "lengths": kernel.lengths, "chunks": kernel.chunks, "rows beyond": beyond}


def other_rank() -> str:
    """What a layer without rotary part and another latent rank is refused with."""
    try:
        layer(0, 2048, 6, rank=256)
    except NotImplementedError as error:
        return str(error)
    return ""


def measure(flashinfer: str, width: int, families: list[int], page: int = 64) -> dict[str, Any]:
    """Of the indexer for these families of compute capability, where the tree has the model."""
    found: dict[str, Any] = {
        "nope": attend(0, width, flashinfer, page),
        "rotary": attend(ROPE, 2048, flashinfer, page),
        "other rank": other_rank(),
        "pages": nope_platform.pages(),
        "platform": nope_platform.decisions(nope_platform.own()),
    }
    if families:
        found["selection"] = {str(family): nope_selection.measure(family) for family in families}
    return found


if __name__ == "__main__":
    interpreted.main(measure)
