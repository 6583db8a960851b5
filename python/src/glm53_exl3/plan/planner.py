"""The plan: whether a pack fits with a context, the longest context that does, and vLLM's memory flags. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from glm53_exl3.errors import PlanError
from glm53_exl3.kernels.settings import DECODE_VARIABLE
from glm53_exl3.pins import RuntimeName
from glm53_exl3.plan.geometry import ModelGeometry, PlainAttention
from glm53_exl3.plan.kv_cache import CacheLayout, CacheOptions, cache_layout
from glm53_exl3.plan.memory import (
    DECODED_EXPERTS,
    GIB,
    HOST_PROCESSES,
    INDEXER_LOGITS_MIB,
    PackWeights,
    ServerShape,
    memory_parts,
)
from glm53_exl3.probes.memory import HostMemory

#: Host memory that has to stay free. The recipe's qualification runs stop below about 8 GiB; hosts lock up well before
#: MemAvailable reaches zero (vllm-project/vllm issue 56824).
DEFAULT_FLOOR_BYTES: Final = 8 * GIB
#: With prefix caching the cache may grow to this many times what the requests need; more would only eat headroom.
_PREFIX_CACHE_SHARE: Final = 2
_SM120_KV_DTYPES: Final = ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla")
_PLAIN_BYTES: Final[Mapping[str, int]] = {
    "auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class PlanRequest:
    """What is to be served.

    Attributes:
        runtime: which vLLM.
        context_tokens: longest prompt and answer together; None for the longest that fits.
        kv_dtype: value of `--kv-cache-dtype`.
        prefix_caching: whether finished prefixes are kept.
        floor_bytes: host memory that stays free.
        kv_cache_bytes: size of the KV cache; None for what the requests need.
        server: the other options.
    """

    runtime: RuntimeName = "fork"
    context_tokens: int | None = None
    kv_dtype: str = "fp8"
    prefix_caching: bool = True
    floor_bytes: int = DEFAULT_FLOOR_BYTES
    kv_cache_bytes: int | None = None
    server: ServerShape = field(default_factory=ServerShape)


@dataclass(frozen=True)
class MemoryPlan:
    """How memory is divided.

    Attributes:
        request: what was asked for.
        memory: of the host when the plan was made.
        parts: bytes of everything but the KV cache, by name.
        layout: the pool of the KV cache.
        cache_limit_bytes: what is left for the cache above the floor; negative when the parts alone do not fit.
        cache_bytes: size the cache gets.
        context_tokens: context that was asked for, or the longest.
        longest_context_tokens: longest context that fits for this many sequences.
        problems: why it does not fit, worst first; empty for a plan that can be served.
    """

    request: PlanRequest
    memory: HostMemory
    parts: Mapping[str, int]
    layout: CacheLayout
    cache_limit_bytes: int
    cache_bytes: int
    context_tokens: int
    longest_context_tokens: int
    problems: tuple[PlanError, ...] = ()

    @property
    def used_bytes(self) -> int:
        """Everything the server takes."""
        return sum(self.parts.values()) + self.cache_bytes

    @property
    def headroom_bytes(self) -> int:
        """Memory that stays free above the floor."""
        return self.memory.free_bytes - self.used_bytes - self.request.floor_bytes

    @property
    def cache_tokens(self) -> int:
        """Tokens of the pool as vLLM logs them."""
        return self.layout.pool_tokens(self.cache_bytes, self.context_tokens) if self.context_tokens else 0

    @property
    def token_bytes(self) -> float:
        """Bytes of cache a token at this context, states included."""
        return self.cache_bytes / self.cache_tokens if self.cache_tokens else math.nan

    @property
    def utilization(self) -> float:
        """Value for `--gpu-memory-utilization`: the share of the total that CUDA takes, rounded down to 0.01.

        With the size of the cache given, vLLM only compares it with the free memory at its start.
        """
        cuda = self.used_bytes - self.parts.get(HOST_PROCESSES, 0)
        return min(0.99, max(0.01, math.floor(100 * cuda / self.memory.total_bytes) / 100))


def memory_arguments(plan: MemoryPlan) -> list[str]:
    """The memory flags of `vllm serve`."""
    request, server = plan.request, plan.request.server
    return [
        "--max-model-len", str(plan.context_tokens),
        "--max-num-seqs", str(server.sequences),
        "--max-num-batched-tokens", str(server.max_batched_tokens),
        "--kv-cache-dtype", request.kv_dtype,
        "--kv-cache-memory-bytes", str(plan.cache_bytes),
        "--gpu-memory-utilization", f"{plan.utilization:.2f}",
        "--enable-prefix-caching" if request.prefix_caching else "--no-enable-prefix-caching",
    ]  # fmt: skip


def memory_environment() -> dict[str, str]:
    """Environment that keeps long prompts from fragmenting the allocator (vllm-project/vllm issue 55569)."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": str(INDEXER_LOGITS_MIB),
    }


def plan_memory(request: PlanRequest, model: ModelGeometry, weights: PackWeights, memory: HostMemory) -> MemoryPlan:
    """Divide a host's memory.

    What counts as free is MemFree: on unified memory CUDA does not see reclaimable page cache.

    Raises:
        PlanError: `plan-option`, options that no runtime can serve, whatever the memory.
    """
    _require_servable(request, model, weights)
    server = request.server
    parts = memory_parts(model, weights, server)
    layout = cache_layout(
        model.attention,
        CacheOptions(
            runtime=request.runtime,
            speculative_tokens=server.speculative_tokens,
            mtp=server.speculation == "mtp",
            prefix_caching=request.prefix_caching,
            max_batched_tokens=server.max_batched_tokens,
            plain_bytes=_PLAIN_BYTES.get(request.kv_dtype, 2),
            draft_token_bytes=weights.draft_token_bytes,
        ),
    )
    limit = memory.free_bytes - sum(parts.values()) - request.floor_bytes
    longest = layout.longest_context(
        limit if request.kv_cache_bytes is None else request.kv_cache_bytes, server.sequences
    )
    longest = min(longest, model.longest_context_tokens)
    context = longest if request.context_tokens is None else request.context_tokens
    plan = MemoryPlan(
        request=request,
        memory=memory,
        parts=parts,
        layout=layout,
        cache_limit_bytes=limit,
        cache_bytes=_cache_bytes(request, layout, context, limit) if context else 0,
        context_tokens=context,
        longest_context_tokens=longest,
    )
    return replace(plan, problems=tuple(_problems(plan, model)))


def _cache_bytes(request: PlanRequest, layout: CacheLayout, context: int, limit: int) -> int:
    if request.kv_cache_bytes is not None:
        return request.kv_cache_bytes
    required = layout.required_bytes(context, request.server.sequences)
    if not request.prefix_caching:
        return required
    most = min(limit, _PREFIX_CACHE_SHARE * required)
    return max(required, most // layout.block_bytes * layout.block_bytes)


def _require_servable(request: PlanRequest, model: ModelGeometry, weights: PackWeights) -> None:
    server = request.server
    plain = isinstance(model.attention, PlainAttention)
    allowed = tuple(_PLAIN_BYTES) if plain else _SM120_KV_DTYPES
    if request.kv_dtype not in allowed:
        raise PlanError(
            "plan-option",
            f"a KV cache of {request.kv_dtype} cannot be served",
            expected=", ".join(allowed),
            hint="glm53-exl3 plan PACK --kv-dtype fp8"
            + ("" if plain else "; the sparse MLA backend of compute capability 12 reads no other"),
        )
    if (server.speculation == "none") != (server.speculative_tokens == 0):
        raise PlanError(
            "plan-option",
            f"speculation {server.speculation} with {server.speculative_tokens} speculative tokens",
            hint="glm53-exl3 plan PACK --speculation mtp --speculative-tokens 2",
        )
    if server.speculation == "mtp" and not (weights.mtp_bytes and model.attention.num_mtp_layers):
        raise PlanError(
            "plan-option",
            "speculation mtp, but the pack has no multi-token-prediction layer",
            hint="glm53-exl3 plan PACK --speculation none",
        )


def _problems(plan: MemoryPlan, model: ModelGeometry) -> list[PlanError]:
    problems: list[PlanError] = []
    request = plan.request
    if plan.context_tokens > model.longest_context_tokens:
        problems.append(
            PlanError(
                "plan-context",
                f"a context of {plan.context_tokens:,} tokens is longer than the model was made for",
                expected=f"at most {model.longest_context_tokens:,}, max_position_embeddings of config.json",
                hint=f"glm53-exl3 plan PACK --context {model.longest_context_tokens}",
            )
        )
    least = max(1, plan.context_tokens)
    needed = plan.layout.required_bytes(least, request.server.sequences)
    if request.kv_cache_bytes is not None and request.kv_cache_bytes < needed:
        problems.append(
            PlanError(
                "plan-cache",
                f"a KV cache of {request.kv_cache_bytes / GIB:.2f} GiB does not hold "
                f"{request.server.sequences} x {least:,} tokens",
                expected=f"{needed} bytes ({needed / GIB:.2f} GiB)",
                hint=f"glm53-exl3 plan PACK --context {plan.longest_context_tokens}"
                if plan.longest_context_tokens
                else "leave --kv-cache-bytes out",
            )
        )
    wanted = needed if request.kv_cache_bytes is None else request.kv_cache_bytes
    if wanted > plan.cache_limit_bytes:
        problems.append(_too_large(plan, wanted))
    return problems


def _too_large(plan: MemoryPlan, cache_bytes: int) -> PlanError:
    memory, floor = plan.memory, plan.request.floor_bytes
    wanted = sum(plan.parts.values()) + cache_bytes + floor
    reclaimable = max(0, memory.available_bytes - memory.free_bytes)
    if wanted <= memory.free_bytes + reclaimable:
        hint = (
            f"page cache holds {reclaimable / GIB:.1f} GiB that CUDA counts as used; "
            "sync && echo 1 | sudo tee /proc/sys/vm/drop_caches"
        )
    elif plan.longest_context_tokens:
        hint = f"glm53-exl3 plan PACK --context {plan.longest_context_tokens}"
    elif DECODED_EXPERTS in plan.parts and plan.request.server.kernels.decode == "load":
        hint = _keep_packed(plan)
    else:
        hint = "stop what else takes memory, or take a smaller pack: not even one block of KV cache fits"
    return PlanError(
        "plan-memory",
        f"{wanted / GIB:.2f} GiB are needed and {memory.free_bytes / GIB:.2f} GiB are free",
        expected=f"MemFree of {wanted / GIB:.2f} GiB: {sum(plan.parts.values()) / GIB:.2f} for the server, "
        f"{cache_bytes / GIB:.2f} of KV cache, {floor / GIB:.2f} to stay free",
        found=f"MemFree {memory.free_bytes / GIB:.2f}, MemAvailable {memory.available_bytes / GIB:.2f}, "
        f"MemTotal {memory.total_bytes / GIB:.2f} GiB",
        hint=hint,
    )


def _keep_packed(plan: MemoryPlan) -> str:
    """How experts need not be decoded at load."""
    size = f"{DECODED_EXPERTS} take {plan.parts[DECODED_EXPERTS] / GIB:.1f} GiB"
    call = f"{DECODE_VARIABLE}=call keeps them packed and decodes for each batch, far slower still"
    if plan.request.server.kernels.backend == "reference":
        return f"{size}: --kernel auto keeps them packed; without it {call}"
    return f"{size}, as no kernels take them: {call}"
