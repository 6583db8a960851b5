"""The width that GLM-5.3-Flash gives the top-k buffer on a family of GPUs, and what its indexer writes there.

The model's constructors and the indexer's function are vLLM's. Around them stand scores drawn at random and the two
top-k kernels, written here from what they are for: the best of a row's pools, in no order, then -1.
"""

from __future__ import annotations

import importlib
import types
from typing import Any

import torch
from vllm.platforms import current_platform

TOP_K, KPOOL, TOKENS, CONTEXT = 2048, 4, 16, 8192
POSITIONS = [0, 1022, *range(2044, 2048), 2050, 2051, 4096]


class Module(torch.nn.Module):
    """In the place of a layer that is not the subject."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def source(name: str) -> Any:
    """A module of the model, where this release keeps it."""
    folder = "common" if importlib.util.find_spec("vllm.models.glm5next.common") else "nvidia"
    return importlib.import_module(f"vllm.models.glm5next.{folder}.{name}")


def configuration() -> Any:
    sizes = {"vocab_size": 32, "hidden_size": 32, "rms_norm_eps": 1e-6}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 8}
    hf = types.SimpleNamespace(index_topk=TOP_K, index_kpool=KPOOL, **sizes)
    model = types.SimpleNamespace(hf_config=hf, hf_text_config=hf)
    return types.SimpleNamespace(
        model_config=model,
        speculative_config=types.SimpleNamespace(draft_model_config=model),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=TOKENS),
        parallel_config=types.SimpleNamespace(use_sequence_parallel_moe=False),
        quant_config=None,
    )


def widths() -> dict[str, int]:
    """Columns of the buffer that the model and its MTP layer allocate, read from what they give to their layers."""
    found: dict[str, int] = {}

    class Layer(Module):
        def __init__(self, *_: Any, prefix: str, topk_indices_buffer: torch.Tensor, **__: Any) -> None:
            super().__init__()
            found[prefix.partition(".")[0]] = topk_indices_buffer.shape[1]

    group = types.SimpleNamespace(is_first_rank=True, is_last_rank=True)
    for module in (source("model"), source("mtp")):
        replaced = dict.fromkeys(("VocabParallelEmbedding", "RMSNorm", "SharedHead", "MHCPostOp"), Module) | {
            "Glm5NextDecoderLayer": Layer,
            "get_pp_group": lambda: group,
            "get_tensor_model_parallel_world_size": lambda: 1,
            "make_layers": lambda count, make, prefix: (0, 1, torch.nn.ModuleList([make(f"{prefix}.0")])),
            "_validate_supported_config": lambda config: None,
        }
        vars(module).update({name: value for name, value in replaced.items() if hasattr(module, name)})
    source("model").Glm5NextModel(vllm_config=configuration(), prefix="model")
    source("mtp").Glm5NextMultiTokenPredictorLayer(configuration(), "mtp.layers.1")
    return found


def best(scores: torch.Tensor, count: int) -> list[int]:
    return scores.topk(min(count, len(scores))).indices.tolist()


class Indexer:
    """Runs the indexer's function over one token for each position; notes how its kernels were asked."""

    def __init__(self, width: int) -> None:
        self.module = importlib.import_module("vllm.model_executor.layers.sparse_attn_indexer_kpool")
        self.positions = torch.tensor(POSITIONS)
        self.pools = (self.positions + 1) // KPOOL
        self.scores = torch.rand(len(POSITIONS), CONTEXT // KPOOL, generator=torch.Generator().manual_seed(1))
        self.buffer = torch.zeros(len(POSITIONS), width, dtype=torch.int32)
        self.asked: list[str] = []
        self._stand_in()

    def _stand_in(self) -> None:
        deep_gemm = importlib.import_module("vllm.utils.deep_gemm")
        deep_gemm.fp8_fp4_mqa_logits = lambda *_, **__: self.scores
        deep_gemm.fp8_fp4_paged_mqa_logits = lambda *_, **__: self.scores
        self.module.ops = types.SimpleNamespace(cp_gather_indexer_k_quant_cache=lambda *_: None)
        blank = torch.zeros(CONTEXT, 128, dtype=torch.uint8)
        workspace = types.SimpleNamespace(get_simultaneous=lambda *specs: [blank] * len(specs))
        self.module.current_workspace_manager = lambda: workspace
        kernels = types.SimpleNamespace(
            top_k_per_row_prefill=lambda logits, start, end, out, *rest: self._select("prefill", end - start, out),
            top_k_per_row_decode=lambda logits, next_n, lengths, out, *rest: self._select("decode", lengths, out),
            persistent_topk=lambda logits, lengths, out, *rest: self._select("persistent", lengths, out),
        )
        self.module.torch = _Torch(kernels)

    def _select(self, kernel: str, lengths: torch.Tensor, out: torch.Tensor) -> None:
        self.asked.append(f"{kernel} {out.shape[1]}")
        out.fill_(-1)
        for at, length in enumerate(lengths.flatten().tolist()):
            chosen = torch.tensor(best(self.scores[at, :length], out.shape[1]), dtype=torch.int32)
            out[at, : len(chosen)] = chosen[torch.randperm(len(chosen))]

    def run(self, metadata: dict[str, Any], positions: torch.Tensor | None) -> torch.Tensor:
        given = object.__new__(self.module.DeepseekV32IndexerMetadata)
        count = len(POSITIONS)
        fixed_parts = {"slot_mapping": torch.zeros(count), "max_seq_len": CONTEXT, "prefill": None, "decode": None}
        vars(given).update(fixed_parts | metadata)
        context = types.SimpleNamespace(attn_metadata={"layer": given})
        self.module.get_forward_context = lambda: context
        self.module._resolve_layer_name = lambda name: name
        cache = torch.zeros(4, 64, 132, dtype=torch.uint8)
        query = torch.zeros(count, 1, 128)
        fixed = (128, "ue8m0", TOP_K, 128, CONTEXT, CONTEXT, self.buffer, True)
        rest = {"index_kpool": KPOOL, "positions": positions}
        self.buffer.fill_(77)
        function = getattr(self.module.sparse_attn_indexer_kpool, "__wrapped__", self.module.sparse_attn_indexer_kpool)
        function(torch.zeros(count, 1), "layer", cache, query, None, query, query, *fixed, **rest)
        return self.buffer.clone()

    def prefill(self, positions: torch.Tensor | None, longest: int) -> torch.Tensor:
        count = len(POSITIONS)
        chunk = types.SimpleNamespace(
            token_start=0,
            token_end=count,
            total_seq_lens=CONTEXT // KPOOL,
            skip_kv_gather=False,
            block_table=None,
            cu_seq_lens=None,
            cu_seqlen_ks=torch.zeros(count, dtype=torch.int32),
            cu_seqlen_ke=self.pools,
        )
        prefill = types.SimpleNamespace(chunks=[chunk], max_prefill_seq_len=longest)
        sizes = {"num_decodes": 0, "num_decode_tokens": 0, "num_prefills": 1, "num_prefill_tokens": count}
        return self.run({"prefill": prefill, **sizes}, positions)

    def decode(self) -> torch.Tensor:
        count = len(POSITIONS)
        decode = types.SimpleNamespace(
            decode_lens=torch.ones(count, dtype=torch.int32),
            requires_padding=False,
            seq_lens=self.pools.to(torch.int32).unsqueeze(1),
            block_table=None,
            schedule_metadata=None,
        )
        sizes = {"num_decodes": count, "num_decode_tokens": count, "num_prefills": 0, "num_prefill_tokens": 0}
        return self.run({"decode": decode, **sizes}, self.positions)

    def judged(self, rows: torch.Tensor, tail: bool = True) -> dict[str, Any]:
        """Rows held against the best pools in the scores and the tokens behind the last complete pool."""
        wrong, counts, last = [], [], []
        for at, position in enumerate(POSITIONS):
            entries = rows[at][rows[at] >= 0].tolist()
            pools = (position + 1) // KPOOL
            behind = list(range(pools * KPOOL, position + 1)) if tail else []
            chosen = entries[: len(entries) - len(behind)]
            ranked = best(self.scores[at, :pools], len(chosen) // KPOOL)
            history = sorted(pool * KPOOL + offset for pool in ranked for offset in range(KPOOL))
            whole = entries[len(chosen) :] == behind and sorted(chosen) == history
            if not whole or len(set(entries)) != len(entries):
                wrong.append(position)
            counts.append(len(entries))
            last.append(int((rows[at] >= 0).nonzero().max()) + 1 if entries else 0)
        return {"wrong": wrong, "counts": dict(zip(POSITIONS, counts, strict=True)), "columns used": max(last)}


class _Torch:
    """torch as the indexer's module sees it, with the top-k kernels of vLLM's extension."""

    def __init__(self, kernels: Any) -> None:
        self.ops = types.SimpleNamespace(_C=kernels)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def refusal(run: Any) -> Any:
    try:
        return run()
    except RuntimeError as error:
        return {"refused": str(error)}


def measure(family: int) -> dict[str, Any]:
    """On a family of compute capability (120 for 12.x), as far as the model can tell."""
    type(current_platform).is_device_capability_family = classmethod(lambda cls, asked, *_: asked == family)
    found: dict[str, Any] = {"widths": widths()}
    if importlib.util.find_spec("vllm.model_executor.layers.sparse_attn_indexer_kpool") is None:
        return found
    width = found["widths"]["model"]
    found["given"] = selected(width)
    if family == 120 and width != TOP_K:
        found["2048"] = selected(TOP_K)
    return found


def selected(width: int) -> dict[str, Any]:
    """What each way through the indexer writes into a buffer of a width."""
    indexer = Indexer(width)
    positions = indexer.positions
    found = {
        "prefill": refusal(lambda: indexer.judged(indexer.prefill(positions, CONTEXT))),
        "without positions": refusal(lambda: indexer.judged(indexer.prefill(None, CONTEXT), tail=False)),
        "decode": refusal(lambda: indexer.judged(indexer.decode())),
        "asked": indexer.asked,
    }
    short = indexer.prefill(positions, TOP_K)
    rows = {at: row[row >= 0].tolist() for at, row in zip(POSITIONS, short, strict=True) if at < TOP_K}
    return found | {"short wrong": [at for at, row in rows.items() if row != list(range(at + 1))]}
