"""The memory a server takes, part by part. Pure.

Parts that follow from shapes are computed; what cannot be is a constant with its origin. docs/memory.md lists how far
the sums are from what others measured on a GB10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from glm53_exl3.plan.geometry import ModelGeometry, PlainAttention

GIB: Final = 1 << 30
MIB: Final = 1 << 20

#: Name of the part that is host memory of processes, not CUDA's.
HOST_PROCESSES: Final = "vLLM's processes"

Speculation = Literal["none", "mtp", "dflash2"]

#: vLLM reports more after loading than the pack holds: 92.31 GiB for the 91.02 GiB of the K2 pack, 98.02 for the 96.08
#: of the mix (recipe of vcruz305). What is left beside the expert scratch is about one part in a hundred.
_LOADING_SHARE: Final = 0.010
#: SMs of a GB10 and SMs that exllamav3's MoE kernel gives one expert, hence experts at once (exllamav3 1.4.4).
_SMS, _SMS_PER_EXPERT = 48, 8
_HALF: Final = 2
#: CUDA context, cuBLAS and FlashInfer workspaces. Not measured by us.
_CONTEXT_BYTES: Final = 700 * MIB
#: One captured graph keeps its own workspaces. Not measured by us.
_GRAPH_BYTES: Final = 24 * MIB
#: `VLLM_SPARSE_INDEXER_MAX_LOGITS_MB` as this project sets it; vLLM's default of 512 fragments the allocator
#: (vllm-project/vllm issue 55569).
INDEXER_LOGITS_MIB: Final = 64
#: What vLLM's processes take of a unified memory outside CUDA, which its accounting leaves out
#: (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks issue 118).
_HOST_PROCESS_BYTES: Final = int(5.6 * GIB)


@dataclass(frozen=True)
class PackWeights:
    """What a pack and its draft load.

    Attributes:
        resident_bytes: weights without the MTP layers.
        mtp_bytes: weights of the MTP layers.
        draft_bytes: weights of a separate draft model, 0 without one.
        draft_token_bytes: keys and values that the draft model keeps a token.
        has_trellis: whether routed experts are EXL3, and so need scratch.
    """

    resident_bytes: int
    mtp_bytes: int
    draft_bytes: int = 0
    draft_token_bytes: int = 0
    has_trellis: bool = True


@dataclass(frozen=True)
class ServerShape:
    """Options of the server that change its memory, but for the KV cache.

    Attributes:
        sequences: requests in one batch.
        max_batched_tokens: tokens of one step.
        speculation: where drafts come from.
        speculative_tokens: drafted tokens a step, 0 without speculation.
        num_graphs: CUDA graphs captured, 0 when eager.
        unified: whether GPU and host share one memory, as on a GB10.
    """

    sequences: int = 1
    max_batched_tokens: int = 2048
    speculation: Speculation = "none"
    speculative_tokens: int = 0
    num_graphs: int = 8
    unified: bool = True


def memory_parts(model: ModelGeometry, weights: PackWeights, server: ServerShape) -> Mapping[str, int]:
    """Bytes by part, without KV cache and floor. Their order is that in which a server takes them."""
    loaded = weights.resident_bytes + (weights.mtp_bytes if server.speculation == "mtp" else 0) + weights.draft_bytes
    parts = {
        "weights": loaded,
        "expert scratch": expert_scratch_bytes(model, server.max_batched_tokens) if weights.has_trellis else 0,
        "loading": int(loaded * _LOADING_SHARE),
        "CUDA context": _CONTEXT_BYTES,
        "activations": activation_bytes(model, server),
        "CUDA graphs": server.num_graphs * _GRAPH_BYTES,
        HOST_PROCESSES: _HOST_PROCESS_BYTES if server.unified else 0,
    }
    return {name: num_bytes for name, num_bytes in parts.items() if num_bytes}


def expert_scratch_bytes(model: ModelGeometry, rows: int) -> int:
    """Scratch of the fused expert kernel, which all layers share.

    For each expert at once it holds fp16 rows of two hidden and two intermediate states: 288 MiB for GLM-5.3-Flash at
    2,048 rows.
    """
    experts_at_once = _SMS // _SMS_PER_EXPERT
    return experts_at_once * rows * 2 * (model.hidden_size + model.expert_size) * _HALF


def activation_bytes(model: ModelGeometry, server: ServerShape) -> int:
    """Largest activations of one step.

    Residual streams before and after a layer and between, both sides and product of its widest intermediate, the
    indexer's scores, and fp32 logits of every position that is sampled.
    """
    residual = 3 * model.residual_streams * model.hidden_size * _HALF
    intermediate = 3 * model.widest_layer * _HALF
    logits = server.sequences * (1 + server.speculative_tokens) * model.vocabulary * 4
    indexer = 0 if isinstance(model.attention, PlainAttention) else INDEXER_LOGITS_MIB * MIB
    return server.max_batched_tokens * (residual + intermediate) + logits + indexer
