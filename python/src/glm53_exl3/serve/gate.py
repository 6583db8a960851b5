"""What has to hold before vLLM starts: a free port, a clean preflight, a sound pack, memory for the plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from glm53_exl3.errors import ServerError
from glm53_exl3.kernels.settings import KernelSettings
from glm53_exl3.pack import files
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.plan.memory import GIB
from glm53_exl3.plan.planner import MemoryPlan, plan_memory
from glm53_exl3.plan.sources import plan_sources
from glm53_exl3.probes.host import Host, LiveHost
from glm53_exl3.probes.memory import HostMemory, read_host_memory
from glm53_exl3.probes.preflight import PreflightOptions, run_preflight
from glm53_exl3.probes.result import Report
from glm53_exl3.serve import backend, page_cache
from glm53_exl3.serve.argv import plan_request
from glm53_exl3.serve.ports import require_free
from glm53_exl3.serve.settings import Settings

#: What `--no-preflight` leaves out, in words for the log.
SKIPPED = (
    "preflight is skipped: GPU, driver, CUDA toolkit, versions of the runtime, K-pool fix and chat template are not "
    "checked; headers of the pack, kernels, port and memory still are"
)


def open_gate(settings: Settings, say: Callable[[str], None]) -> MemoryPlan | None:
    """Check everything that can be checked before vLLM starts; the memory plan, None without `memory_plan`.

    Args:
        settings: of the server.
        say: prints one line for the user.

    Raises:
        ServerError: `port-taken` or `preflight-failed`.
        KernelError: no backend can run the experts as asked for, see `serve.backend`.
        PackError: the pack is not sound.
        FormatError: the pack is not EXL3.
        PlanError: the plan cannot be made; one that does not fit is returned with its problems.
    """
    if not settings.headless:
        require_free(settings.port, settings.host)
    runs = runnable_kernels(settings, LiveHost(), say)
    shards = _shards(settings)
    if settings.page_cache == "drop":
        _apply("drop", shards, say)
    inventory = read_inventory(settings.pack)
    inventory.require_sound()
    if runs.backend != "reference":
        backend.require_layers(settings, backend.chosen_kernels(settings, os.environ), runs, inventory)
    plan = _plan(settings, runs, inventory, shards, say) if settings.memory_plan else None
    if settings.page_cache == "warm":
        # After the plan, which counts what is in the cache as used.
        _apply("warm", shards, say)
    return plan


def runnable_kernels(settings: Settings, host: Host, say: Callable[[str], None]) -> KernelSettings:
    """What this machine will run, after a preflight unless it is left out.

    Args:
        settings: of the server.
        host: the machine.
        say: prints one line for the user.

    Returns:
        The choice; where `auto` has but one compiled backend to choose from, that one, where none, the reference.

    Raises:
        ServerError: `preflight-failed`.
        KernelError: the backend that is asked for cannot run here.
    """
    kernels = backend.chosen_kernels(settings, os.environ)
    candidates = backend.require_runnable(settings, kernels, host)
    if settings.preflight:
        report = _preflight(settings, host)
        lacks = backend.lacking(report.results, candidates)
        _require_clean(report, say, {backend.CHECKS[name].id for name in backend.forbidding(lacks, settings, kernels)})
        names = set(lacks)
    else:
        say(SKIPPED)
        names = _lacking_unchecked(settings, kernels, candidates, host, say)
    return backend.without(kernels, names) if candidates else replace(kernels, backend="reference")


def _lacking_unchecked(
    settings: Settings, kernels: KernelSettings, candidates: frozenset[str], host: Host, say: Callable[[str], None]
) -> set[str]:
    """Compiled backends that cannot run, found without a preflight where something depends on it."""
    if not candidates or not (settings.memory_plan or backend.must_run_compiled(settings, kernels)):
        return set()
    facts = backend.extension_facts(host)
    lacks = backend.lacking(backend.extension_results(facts), candidates)
    forbidding = backend.forbidding(lacks, settings, kernels)
    others = " or ".join(sorted(candidates - set(lacks)))
    instead = f"the {others} backend" if others else "the reference backend, exact and slow"
    for name, result in lacks.items():
        fault = backend.extension_fault(name, result, facts)
        if name in forbidding:
            raise fault
        say(f"warning: {fault.id}: {fault.what}; the experts run by {instead}")
    return set(lacks)


def _preflight(settings: Settings, host: Host) -> Report:
    options = PreflightOptions(runtime=settings.runtime, pack=settings.pack, port=settings.port, python=sys.executable)
    return run_preflight(options, host)


def _require_clean(report: Report, say: Callable[[str], None], needed: Collection[str]) -> None:
    """Refuse a report with failures.

    Args:
        report: of preflight.
        say: prints one line for the user.
        needed: checks of compiled backends without which nothing can run, whatever their status; others are warnings.
    """
    kernels = {check.id for check in backend.CHECKS.values()}
    found = [*report.of("fail"), *report.of("warn")]
    failures = [one for one in found if one.id in needed or (one.status == "fail" and one.id not in kernels)]
    for result in found:
        if result not in failures:
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


def _plan(
    settings: Settings,
    kernels: KernelSettings,
    inventory: Inventory,
    shards: Sequence[Path],
    say: Callable[[str], None],
) -> MemoryPlan:
    geometry, weights = plan_sources(inventory, settings.draft)

    def plan(memory: HostMemory) -> MemoryPlan:
        return plan_memory(plan_request(settings, kernels), geometry, weights, memory)

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
