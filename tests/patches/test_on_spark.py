"""FlashInfer's SM12x kernels under the calls of patches 0010 and 0011; skips without such a GPU or FlashInfer."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from nope_oracle import LATENT, ROPE, ROW, attention, pack, unpack

PAGES, HEADS, SCALE = 64, 64, 256**-0.5
#: The kernel multiplies in FP8, query and weights too. A loose bound, since the error was not measured on such a GPU.
COSINE = 0.99


def missing() -> str:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 12:
        return "needs a GPU of compute capability 12.x"
    if importlib.util.find_spec("flashinfer") is None:
        return "needs FlashInfer"
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "runs")


def rows(groups: int) -> list[list[int]]:
    """Columns of each token: full, a tail behind unused history, one entry, none."""
    drawn = torch.randperm(PAGES * 64 - 64)[:2047] + 64
    gap = [*range(70, 78), *[-1] * (2048 - 11), 100, 101, 102]
    return [drawn.tolist(), gap, [777], []] * groups


def call(query: torch.Tensor, cache: torch.Tensor, columns: list[list[int]]) -> torch.Tensor:
    """The padded query and the lengths, as the patched layer gives them."""
    from flashinfer.mla import trtllm_batch_decode_with_kv_cache_mla

    table = torch.full((len(columns), 2048), -1, dtype=torch.int32, device="cuda")
    for token, entries in enumerate(columns):
        table[token, : len(entries)] = torch.tensor(entries, dtype=torch.int32, device="cuda")
    ends = torch.arange(1, 2049, dtype=torch.int32, device="cuda")
    lengths = (ends * (table >= 0)).amax(dim=1)
    out = torch.full((len(columns), 1, HEADS, LATENT), float("nan"), dtype=torch.bfloat16, device="cuda")
    given: dict[str, Any] = {
        "workspace_buffer": torch.zeros(256 << 20, dtype=torch.int8, device="cuda"),
        "qk_nope_head_dim": 256,
        "kv_lora_rank": LATENT,
        "qk_rope_head_dim": ROPE,
        "max_seq_len": 2048,
        "bmm1_scale": SCALE,
        "bmm2_scale": 1.0,
        "sparse_mla_top_k": 2048,
        "kv_scale_format": "arbitrary_fp32",
    }
    padded = torch.nn.functional.pad(query, (0, ROPE)).unsqueeze(1)
    shared = {"block_tables": table.unsqueeze(1), "seq_lens": lengths.clamp(min=1), "out": out}
    trtllm_batch_decode_with_kv_cache_mla(query=padded, kv_cache=cache.unsqueeze(1), **shared, **given)
    return out.squeeze(1).masked_fill_((lengths == 0).view(-1, 1, 1), 0.0)


@pytest.mark.parametrize("groups", [1, 17], ids=["decode", "prefill"])
def test_kernel_equals_attention_over_selected_latents(groups: int) -> None:
    torch.manual_seed(0)
    latent = torch.randn(PAGES * 64, LATENT).to(torch.bfloat16)
    cache = pack(latent, torch.zeros(len(latent), ROPE))
    columns = rows(groups)
    query = (torch.randn(len(columns), HEADS, LATENT) * 0.3).to(torch.bfloat16)
    answer = call(query.cuda(), cache.view(PAGES, 64, ROW).cuda(), columns).double().cpu()
    for token, entries in enumerate(columns):
        chosen = [entry for entry in entries if entry >= 0]
        if not chosen:
            assert answer[token].abs().max() == 0
            continue
        keys, _ = unpack(cache[torch.tensor(chosen)])
        exact = attention(query[token], keys, keys, SCALE)
        assert torch.cosine_similarity(answer[token], exact, dim=-1).min() > COSINE, f"token {token}"
