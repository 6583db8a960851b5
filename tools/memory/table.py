"""Compare the memory model with what others measured on a GB10, as the tables of docs/memory.md.

Run it where the package is installed; it prints Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from glm53_exl3.kernels.settings import KernelSettings
from glm53_exl3.pins import load_pins
from glm53_exl3.plan.geometry import Glm5NextAttention, ModelGeometry
from glm53_exl3.plan.kv_cache import CacheLayout, CacheOptions, cache_layout
from glm53_exl3.plan.memory import GIB, HOST_PROCESSES, PackWeights, ServerShape, memory_parts

MEASURED: Final = json.loads((Path(__file__).parent / "measured.json").read_text(encoding="utf-8"))
#: GLM-5.3-Flash: 34 KDA and 11 MLA layers and one MTP layer.
GLM53_FLASH: Final = ModelGeometry(
    attention=Glm5NextAttention(
        num_mla_layers=11,
        num_kda_layers=34,
        num_mtp_layers=1,
        latent_size=512,
        index_head_size=128,
        index_pool_tokens=4,
        kda_heads=64,
        kda_head_size=128,
        kda_conv_kernel=4,
    ),
    hidden_size=4096,
    num_experts=288,
    experts_per_token=8,
    expert_size=2048,
    widest_layer=12288,
    residual_streams=4,
    vocabulary=154880,
    longest_context_tokens=1048576,
)
#: Experts of the MTP layer by bits, and its attention, shared expert and projections in BF16.
_EXPERT_BYTES: Final = {"K2": 1_822_559_616, "K2K3-mix": 2_728_529_280}
_MTP_REST_BYTES: Final = 388_000_000


def tables() -> Iterator[str]:
    """The three tables, line by line."""
    yield from _weights_table()
    yield ""
    yield from _pinned_table()
    yield ""
    yield from _pools_table()


def _weights_table() -> Iterator[str]:
    yield "| weights after loading | model, GiB | measured, GiB | error |"
    yield "| --- | ---: | ---: | ---: |"
    for case in MEASURED["weights"]:
        parts = _parts(case)
        model = (parts["weights"] + parts["expert scratch"] + parts["loading"]) / GIB
        error = model / case["measured_gib"] - 1
        yield f"| {case['what']} | {model:.2f} | {case['measured_gib']:.2f} | {error:+.1%} |"


def _pinned_table() -> Iterator[str]:
    yield "| size of the cache given, context 262,144 | model, tokens | measured, tokens | error | bytes a token |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for case in MEASURED["pinned"]:
        model = _layout(case, prefix_caching=False).pool_tokens(case["cache_bytes"], case["context"])
        bytes_per_token = case["cache_bytes"] / model
        yield f"| {case['what']} | {model:,} | {_range(case)} | {_error(model, case)} | {bytes_per_token:,.0f} |"


def _pools_table() -> Iterator[str]:
    yield "| pool under a utilization | model, tokens | measured, tokens | error | assumed |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for case in MEASURED["pools"]:
        cuda = sum(num_bytes for name, num_bytes in _parts(case).items() if name != HOST_PROCESSES)
        cache_bytes = int(case["utilization"] * MEASURED["total_gib"] * GIB) - cuda
        model = _layout(case, case["prefix_caching"]).pool_tokens(cache_bytes, case["context"])
        what = f"{case['what']}, {case['utilization']:.2f}"
        yield f"| {what} | {model:,} | {_range(case)} | {_error(model, case)} | {case.get('assumed', '')} |"


def _parts(case: dict[str, Any]) -> dict[str, int]:
    mtp_bytes = _EXPERT_BYTES[case["pack"]] + _MTP_REST_BYTES
    weights = PackWeights(load_pins().packs[case["pack"]].weight_bytes - mtp_bytes, mtp_bytes)
    tokens = case["speculative_tokens"]
    # What was measured ran one backend, with the scratch of exl3_moe.
    kernels = KernelSettings("exllamav3")
    server = ServerShape(speculation="mtp" if tokens else "none", speculative_tokens=tokens, kernels=kernels)
    return dict(memory_parts(GLM53_FLASH, weights, server))


def _layout(case: dict[str, Any], prefix_caching: bool) -> CacheLayout:
    tokens = case["speculative_tokens"]
    options = CacheOptions("fork", speculative_tokens=tokens, mtp=bool(tokens), prefix_caching=prefix_caching)
    return cache_layout(GLM53_FLASH.attention, options)


def _range(case: dict[str, Any]) -> str:
    return " to ".join(f"{tokens:,}" for tokens in case["measured_tokens"])


def _error(model: int, case: dict[str, Any]) -> str:
    """Distance from the nearest end of what was measured, 0 between its ends."""
    low, high = min(case["measured_tokens"]), max(case["measured_tokens"])
    return f"{model / min(max(model, low), high) - 1:+.1%}"


if __name__ == "__main__":
    print("\n".join(tables()))
