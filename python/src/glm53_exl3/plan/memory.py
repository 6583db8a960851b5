"""The memory a server takes, part by part. Pure.

Parts that follow from shapes are computed; what cannot be is a constant with its origin. docs/memory.md lists how far
the sums are from what others measured on a GB10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from glm53_exl3.kernels.exllamav3.shape import SMS_PER_EXPERT, shape_for
from glm53_exl3.kernels.native.scratch import scratch_for
from glm53_exl3.kernels.settings import KernelSettings
from glm53_exl3.plan.geometry import ModelGeometry, PlainAttention

GIB: Final = 1 << 30
MIB: Final = 1 << 20

#: Name of the part that is host memory of processes, not CUDA's.
HOST_PROCESSES: Final = "vLLM's processes"
#: Name of the part that the reference backend takes for experts in 16 bits.
DECODED_EXPERTS: Final = "decoded experts"

Speculation = Literal["none", "mtp", "dflash2"]

#: vLLM reports more after loading than the pack holds: 92.31 GiB for the 91.02 GiB of the K2 pack, 98.02 for the 96.08
#: of the mix (recipe of vcruz305). What is left beside the expert scratch is about one part in a hundred.
_LOADING_SHARE: Final = 0.010
#: SMs of a GB10.
_SMS: Final = 48
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
#: Backends with kernels, which need scratch.
COMPILED: Final = frozenset({"native", "exllamav3"})


@dataclass(frozen=True)
class ExpertLayer:
    """Routed EXL3 experts of one layer.

    Attributes:
        num_experts: of the layer.
        packed_bytes: trellis, suh and svh of all of them.
        num_weights: elements of their matrices.
        backends: compiled ones that take their codebook.
        is_mtp: whether it is a multi-token-prediction layer.
    """

    num_experts: int
    packed_bytes: int
    num_weights: int
    backends: frozenset[str] = COMPILED
    is_mtp: bool = False


@dataclass(frozen=True)
class PackWeights:
    """What a pack and its draft load.

    Attributes:
        resident_bytes: weights without the MTP layers.
        mtp_bytes: weights of the MTP layers.
        draft_bytes: weights of a separate draft model, 0 without one.
        draft_token_bytes: keys and values that the draft model keeps a token.
        has_trellis: whether routed experts are EXL3, and so need scratch.
        experts: its layers of them, for the reference backend.
    """

    resident_bytes: int
    mtp_bytes: int
    draft_bytes: int = 0
    draft_token_bytes: int = 0
    has_trellis: bool = True
    experts: tuple[ExpertLayer, ...] = ()


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
        kernels: which backend runs the experts.
    """

    sequences: int = 1
    max_batched_tokens: int = 2048
    speculation: Speculation = "none"
    speculative_tokens: int = 0
    num_graphs: int = 8
    unified: bool = True
    kernels: KernelSettings = field(default_factory=KernelSettings)


def memory_parts(model: ModelGeometry, weights: PackWeights, server: ServerShape) -> Mapping[str, int]:
    """Bytes by part, without KV cache and floor. Their order is that in which a server takes them."""
    loaded = weights.resident_bytes + (weights.mtp_bytes if server.speculation == "mtp" else 0) + weights.draft_bytes
    layers = [layer for layer in weights.experts if server.speculation == "mtp" or not layer.is_mtp]
    referred = [layer for layer in layers if _runs_by_reference(layer, server.kernels)]
    has_scratch = weights.has_trellis and server.kernels.backend != "reference" and not (layers and layers == referred)
    # What is decoded at load is not kept packed.
    dropped = sum(layer.packed_bytes for layer in referred) if server.kernels.decode == "load" else 0
    parts = {
        "weights": loaded - dropped,
        DECODED_EXPERTS: _decoded_bytes(referred, server.kernels),
        "expert scratch": expert_scratch_bytes(model, server) if has_scratch else 0,
        "loading": int(loaded * _LOADING_SHARE),
        "CUDA context": _CONTEXT_BYTES,
        "activations": activation_bytes(model, server),
        "CUDA graphs": server.num_graphs * _GRAPH_BYTES,
        HOST_PROCESSES: _HOST_PROCESS_BYTES if server.unified else 0,
    }
    return {name: num_bytes for name, num_bytes in parts.items() if num_bytes}


def expert_scratch_bytes(model: ModelGeometry, server: ServerShape) -> int:
    """What compiled backends work in on a GB10, shared by all layers: the same sums as their own.

    `auto` builds both to find out which is faster, so that it needs both while it loads.
    """
    shape = shape_for(
        model.hidden_size, model.expert_size, model.num_experts, _SMS // SMS_PER_EXPERT, server.max_batched_tokens
    )
    scratch = scratch_for(
        model.hidden_size, model.expert_size, model.num_experts, model.experts_per_token, server.max_batched_tokens
    )
    sizes = {"exllamav3": shape.num_bytes + shape.buffer_bytes, "native": scratch.num_bytes}
    return sum(sizes[backend] for backend in _compiled(server.kernels))


def _compiled(kernels: KernelSettings) -> frozenset[str]:
    return COMPILED if kernels.backend == "auto" else COMPILED & {kernels.backend}


def _runs_by_reference(layer: ExpertLayer, kernels: KernelSettings) -> bool:
    return layer.backends.isdisjoint(_compiled(kernels))


def _decoded_bytes(layers: Sequence[ExpertLayer], kernels: KernelSettings) -> int:
    """16 bits a weight, as on a GPU: of all experts, or where a batch decodes them of the one that is at work."""
    if kernels.decode == "load":
        return sum(layer.num_weights for layer in layers) * _HALF
    return max((layer.num_weights // layer.num_experts for layer in layers), default=0) * _HALF


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
