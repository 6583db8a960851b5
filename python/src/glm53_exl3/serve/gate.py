"""What has to hold before vLLM starts: a free port, a clean preflight, a sound pack, memory for the plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from glm53_exl3.errors import KernelError, ServerError
from glm53_exl3.kernels.settings import KERNEL_VARIABLE, Backend, kernel_settings
from glm53_exl3.pack import files
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.plan.memory import GIB
from glm53_exl3.plan.planner import MemoryPlan, plan_memory
from glm53_exl3.plan.sources import read_plan_sources
from glm53_exl3.probes.gpu import read_gpus
from glm53_exl3.probes.host import Host, LiveHost
from glm53_exl3.probes.memory import HostMemory, read_host_memory
from glm53_exl3.probes.preflight import PreflightOptions, run_preflight
from glm53_exl3.probes.result import Report
from glm53_exl3.serve import page_cache
from glm53_exl3.serve.argv import plan_request
from glm53_exl3.serve.ports import require_free
from glm53_exl3.serve.settings import Settings

#: What `--no-preflight` leaves out, in words for the log.
SKIPPED = (
    "preflight is skipped: GPU, driver, CUDA toolkit, versions of the runtime, K-pool fix and chat template are not "
    "checked; headers of the pack, port and memory still are"
)


def open_gate(settings: Settings, say: Callable[[str], None]) -> MemoryPlan | None:
    """Check everything that can be checked before vLLM starts; the memory plan, None without `memory_plan`.

    Args:
        settings: of the server.
        say: prints one line for the user.

    Raises:
        ServerError: `port-taken` or `preflight-failed`.
        KernelError: `reference-graphs`, no backend for CUDA graphs.
        PackError: the pack is not sound.
        FormatError: the pack is not EXL3.
        PlanError: the plan cannot be made; one that does not fit is returned with its problems.
    """
    if not settings.headless:
        require_free(settings.port, settings.host)
    require_recordable(settings, LiveHost())
    if settings.preflight:
        _require_clean(_preflight(settings), say)
    else:
        say(SKIPPED)
    shards = _shards(settings)
    if settings.page_cache == "drop":
        _apply("drop", shards, say)
    plan = None
    if settings.memory_plan:
        plan = _plan(settings, shards, say)
    else:
        read_inventory(settings.pack).require_sound()
    if settings.page_cache == "warm":
        # After the plan, which counts what is in the cache as used.
        _apply("warm", shards, say)
    return plan


def require_recordable(settings: Settings, host: Host) -> None:
    """Refuse now what the plugin would refuse once the weights are loaded: CUDA graphs without a backend for them.

    Args:
        settings: of the server.
        host: the machine.

    Raises:
        KernelError: `reference-graphs`.
    """
    backends = set(get_args(Backend)) - {"auto", "reference"}
    if settings.enforce_eager or (backends and kernel_settings().backend != "reference") or not read_gpus(host).gpus:
        return
    raise KernelError(
        "reference-graphs",
        "the experts would run by the reference backend, which no CUDA graph can hold",
        expected="a backend for this GPU, which is not part of this release" if not backends else "another backend",
        found=f"backends: {', '.join(sorted(backends | {'reference'}))}",
        hint="--enforce-eager, exact and slow" if not backends else f"unset {KERNEL_VARIABLE}",
    )


def _preflight(settings: Settings) -> Report:
    return run_preflight(
        PreflightOptions(runtime=settings.runtime, pack=settings.pack, port=settings.port, python=sys.executable)
    )


def _require_clean(report: Report, say: Callable[[str], None]) -> None:
    failures = report.of("fail")
    for result in report.of("warn"):
        say(f"warning: {result.id}: {result.measured}; {result.hint}")
    if failures:
        raise ServerError(
            "preflight-failed",
            "\n".join(f"{result.id}: {result.measured}\n    {result.hint}" for result in failures),
            expected="no failure",
            found=f"{len(failures)} failures",
            hint="mend them, or go on regardless with --no-preflight",
        )


def _shards(settings: Settings) -> list[Path]:
    folders = [settings.pack, *([settings.draft] if settings.draft else [])]
    return [path for folder in folders for path in files.shard_paths(folder, files.read_index(folder))[0]]


def _plan(settings: Settings, shards: Sequence[Path], say: Callable[[str], None]) -> MemoryPlan:
    geometry, weights = read_plan_sources(settings.pack, settings.draft)

    def plan(memory: HostMemory) -> MemoryPlan:
        return plan_memory(plan_request(settings), geometry, weights, memory)

    made = plan(read_host_memory())
    if settings.page_cache == "auto" and any(problem.id == "plan-memory" for problem in made.problems):
        # CUDA counts cached pages as used: those of the pack are the ones that a download has just left behind.
        cached = page_cache.cached_bytes(shards)
        if cached:
            say(f"the page cache holds {cached / GIB:.1f} GiB of the pack that CUDA counts as used")
            _apply("drop", shards, say)
            made = plan(read_host_memory())
    return made


def _apply(action: str, shards: Sequence[Path], say: Callable[[str], None]) -> None:
    if action == "drop":
        page_cache.drop(shards)
        say("the pack's pages are dropped from the page cache")
    else:
        say(f"{page_cache.warm(shards) / GIB:.1f} GiB of the pack are read into the page cache")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
