"""Receipts made of figures that are given."""

from __future__ import annotations

import copy
from typing import Any

from glm53_exl3.bench.load import Level, Sample
from glm53_exl3.bench.receipt import Receipt

CONDITIONS: dict[str, Any] = {
    "server": {
        "vllm_version": "0.32.0",
        "model": "GLM-5.3-Flash-EXL3",
        "max_model_len_tokens": 8192,
        "flags": {"--max-num-seqs": "1", "--enforce-eager": "true"},
        "environment": {"GLM53_EXL3_KERNEL": "auto"},
    },
    "pack": {"repository": "owner/pack", "commit": "1" * 40, "config_sha256": "2" * 64, "weight_bytes": 97_728_721_536},
    "machine": {
        "runs": "server and client",
        "architecture": "aarch64",
        "kernel": "Linux 6.14.0",
        "cpu": "Cortex-X925, Cortex-A725",
        "cores": 20,
        "memory_bytes": 130_000_000_000,
        "gpus": ["NVIDIA GB10 (12.1), driver 580.95.05"],
    },
    "client": {
        "version": "0.1.0",
        "revision": None,
        "python": "3.12.3",
        "prompts": "generated",
        "prompts_sha256": "3" * 64,
        "prompt_tokens": 512,
        "max_tokens": 11,
        "ignore_eos": True,
        "temperature": 0.0,
        "extra_body": {},
        "requests": None,
        "runs": 7,
        "warm_up_runs": 2,
        "seed": 0,
        "leave_share": 0.0,
        "timeout_seconds": 600.0,
    },
}


def changed(**values: Any) -> dict[str, Any]:
    """Conditions with other values: `changed(server__model="x")`; two underscores stand for a dot."""
    conditions = copy.deepcopy(CONDITIONS)
    for key, value in values.items():
        *path, last = key.split("__")
        place = conditions
        for name in path:
            place = place[name]
        place[last] = value
    return conditions


def sample(run: int, number: int, *, first: float = 0.5, spacing: float = 0.05, outcome: str = "answered") -> Sample:
    """An answer of 11 tokens."""
    answered = outcome == "answered"
    return Sample(
        run=run,
        number=number,
        outcome=outcome,  # type: ignore[arg-type]
        detail="" if answered else "status 500: no memory",
        started_seconds=0.0,
        seconds=first + 10 * spacing,
        first_seconds=first if answered else None,
        last_seconds=first + 10 * spacing if answered else None,
        longest_gap_seconds=spacing if answered else None,
        prompt_tokens=512 if answered else None,
        completion_tokens=11 if answered else None,
        cached_tokens=None,
        output_sha256="4" * 64 if answered else None,
    )


def level(
    concurrency: int = 1, *, firsts: list[float] | None = None, spacings: list[float] | None = None, **rest: Any
) -> Level:
    """A level with one run for each value; all requests of a run take the same time."""
    firsts = firsts or [0.5] * len(spacings or [0] * 7)
    spacings = spacings or [0.05] * len(firsts)
    samples = tuple(
        sample(run, 2 * concurrency + run * concurrency + client, first=first, spacing=spacing, **rest)
        for run, (first, spacing) in enumerate(zip(firsts, spacings, strict=True))
        for client in range(concurrency)
    )
    return Level(concurrency, concurrency, samples)


def receipt(*levels: Level, conditions: dict[str, Any] | None = None) -> Receipt:
    """A receipt with the conditions of `CONDITIONS`."""
    facts = {"url": "http://127.0.0.1:8000", "server_process": "found"}
    return Receipt("2026-11-30T12:00:00+00:00", facts, conditions or copy.deepcopy(CONDITIONS), levels or (level(),))
