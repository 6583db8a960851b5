"""Flags of `vllm serve` that only one of the two runtimes has, as data.

Source: the option tables of vLLM's own parser in the releases 0.28.0, 0.29.0 and 0.32.0 (their CPU builds on PyPI). The
fork was branched between the cuts of the first two (its files at the pinned revision have parts of both), so what
neither has is not in the fork, and what 0.29.0 has and 0.28.0 has not may or may not be. `--no-` forms go with theirs.
"""

from __future__ import annotations

from typing import Final

#: In 0.28.0 and 0.29.0, not in 0.32.0.
FORK_ONLY: Final = ("--enable-bf16x3-router-gemm",)
#: In 0.32.0, in neither 0.28.0 nor 0.29.0.
UPSTREAM_ONLY: Final = (
    "--anthropic-disabled-thinking-effort",
    "--aux-output-config",
    "--custom-histogram-buckets",
    "--device-memory-utilization",
    "--dp-sync-interval",
    "--elastic-ep-max-dp-size",
    "--enable-hc-sp",
    "--enable-mamba-shared-prefix-checkpoint",
    "--enable-nccl-comm-suspend",
    "--enable-scale-out",
    "--enable-shm-tensor-arena",
    "--engram-config",
    "--grpc-port",
    "--kda-decode-backend",
    "--log-level",
    "--logging-config",
    "--long-prefill-token-threshold-adaptive",
    "--max-lora-cls-labels",
    "--max-num-active-seqs",
    "--sleep-mode-offload-cudagraph",
    "--sleep-preserve-parameter-names",
    "--sparse-indexer-topk-backend",
    "--swa-bounded-replay",
    "--tool-strict-level",
    "--trust-request-mm-kwargs",
    "--watermark-config",
)
#: In 0.29.0 and 0.32.0, not in 0.28.0.
PERHAPS_IN_FORK: Final = (
    "--dcp-q-replicate",
    "--enable-batch-sharded-sampling",
    "--enable-trace-replay",
    "--max-num-queued-reqs",
    "--max-num-queued-tokens",
    "--per-request-spec-decode-metrics",
    "--prefix-cache-retention-interval",
    "--sse-keep-alive-interval",
)
