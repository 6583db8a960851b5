"""`glm53-exl3 plan`: what a pack, a context and this host add up to."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.errors import ExitCode, PlanError
from glm53_exl3.kernels.settings import Backend, kernel_settings
from glm53_exl3.pins import RuntimeName

if TYPE_CHECKING:
    from glm53_exl3.plan.planner import MemoryPlan, PlanRequest
    from glm53_exl3.probes.memory import HostMemory


SpeculationChoice = Literal["none", "mtp", "dflash2"]
#: Drafted tokens a step where none are asked for: what the recipe measured as best.
_DEFAULT_TOKENS: Final[dict[SpeculationChoice, int]] = {"none": 0, "mtp": 2, "dflash2": 3}


def plan(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="Folder of the pack.")],
    context: Annotated[
        int | None, typer.Option(help="Tokens of prompt and answer together; the longest that fits by default.", min=1)
    ] = None,
    sequences: Annotated[int, typer.Option(help="Requests at once.", min=1)] = 1,
    runtime: Annotated[RuntimeName, typer.Option(help="Which vLLM.")] = "fork",
    speculation: Annotated[SpeculationChoice, typer.Option(help="Where drafts come from.")] = "none",
    speculative_tokens: Annotated[int | None, typer.Option(help="Drafted tokens a step.", min=1, max=16)] = None,
    draft: Annotated[Path | None, typer.Option(help="Folder of the draft model, for dflash2.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="vLLM's --kv-cache-dtype.")] = "fp8",
    prefix_caching: Annotated[bool, typer.Option(help="Keep finished prefixes.")] = True,
    batched_tokens: Annotated[int, typer.Option(help="Tokens of one step.", min=1)] = 2048,
    kv_cache_bytes: Annotated[int | None, typer.Option(help="Size of the KV cache.", min=1)] = None,
    floor: Annotated[float, typer.Option(help="GiB of host memory that stay free.", min=0)] = 8.0,
    memory: Annotated[
        float | None, typer.Option(help="Plan for another machine with this many GiB, all of them free.", min=1)
    ] = None,
    kernel: Annotated[
        Backend | None,
        typer.Option(
            help="Which backend runs the experts; that of GLM53_EXL3_KERNEL by default, else auto, both compiled ones."
        ),
    ] = None,
    discrete: Annotated[
        bool, typer.Option("--discrete", help="The GPU has memory of its own, which --memory states.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Say whether a pack fits with a context, the longest context that does, and vLLM's memory flags.

    Reads headers only. On a GB10 free means MemFree: CUDA counts page cache as used.
    """
    from glm53_exl3.plan.memory import GIB, ServerShape
    from glm53_exl3.plan.planner import PlanRequest, plan_memory
    from glm53_exl3.plan.sources import read_plan_sources

    tokens = _DEFAULT_TOKENS[speculation] if speculative_tokens is None else speculative_tokens
    _require_consistent(speculation, draft, memory, discrete)
    geometry, weights = read_plan_sources(pack, draft)
    request = PlanRequest(
        runtime=runtime,
        context_tokens=context,
        kv_dtype=kv_dtype,
        prefix_caching=prefix_caching,
        floor_bytes=int(floor * GIB),
        kv_cache_bytes=kv_cache_bytes,
        server=ServerShape(
            sequences=sequences,
            max_batched_tokens=batched_tokens,
            speculation=speculation,
            speculative_tokens=tokens,
            unified=not discrete,
            kernels=kernel_settings(os.environ, backend=kernel),
        ),
    )
    result = plan_memory(request, geometry, weights, _memory(memory))
    if as_json:
        stdout.file.write(json.dumps(plan_json(result), indent=1) + "\n")
    else:
        _print_plan(result, pack)
    for problem in result.problems:
        stderr.print(f"\n{problem.render()}", markup=False)
    if result.problems:
        raise typer.Exit(ExitCode.FIXABLE)


def plan_json(result: MemoryPlan) -> dict[str, Any]:
    """The plan as `--json` prints it; all sizes in bytes."""
    from glm53_exl3.plan.planner import memory_arguments, memory_environment

    return {
        "fits": not result.problems,
        "problems": [{"id": problem.id, "what": problem.what, "hint": problem.hint} for problem in result.problems],
        "runtime": result.request.runtime,
        "sequences": result.request.server.sequences,
        "context_tokens": result.context_tokens,
        "longest_context_tokens": result.longest_context_tokens,
        "parts": dict(result.parts),
        "kv_cache": {
            "bytes": result.cache_bytes,
            "limit_bytes": result.cache_limit_bytes,
            "tokens": result.cache_tokens,
            "bytes_per_token": round(result.token_bytes, 1) if result.cache_tokens else None,
            "block_tokens": result.layout.block_tokens,
            "block_bytes": result.layout.block_bytes,
        },
        "used_bytes": result.used_bytes,
        "floor_bytes": result.request.floor_bytes,
        "headroom_bytes": result.headroom_bytes,
        "memory": {
            "total_bytes": result.memory.total_bytes,
            "free_bytes": result.memory.free_bytes,
            "available_bytes": result.memory.available_bytes,
        },
        "arguments": memory_arguments(result) if not result.problems else [],
        "environment": memory_environment() if not result.problems else {},
    }


def _require_consistent(
    speculation: SpeculationChoice, draft: Path | None, memory: float | None, discrete: bool
) -> None:
    if (speculation == "dflash2") != (draft is not None):
        raise PlanError(
            "plan-option",
            "--speculation dflash2 and --draft DIR belong together",
            hint="glm53-exl3 fetch DFlash2, then glm53-exl3 plan PACK --speculation dflash2 --draft DIR",
        )
    if discrete and memory is None:
        raise PlanError(
            "plan-option",
            "--discrete needs the memory of the GPU",
            hint="glm53-exl3 plan PACK --discrete --memory 139.8 --floor 2",
        )


def _memory(gib: float | None) -> HostMemory:
    from glm53_exl3.plan.memory import GIB
    from glm53_exl3.probes.memory import HostMemory, read_host_memory

    if gib is None:
        return read_host_memory()
    size = int(gib * GIB)
    return HostMemory(size, size, size, 0, 0, 0)


def _print_plan(result: MemoryPlan, pack: Path) -> None:
    from rich.table import Table

    from glm53_exl3.plan.memory import GIB

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for name, num_bytes in [*result.parts.items(), ("KV cache", result.cache_bytes)]:
        table.add_row(name, f"{num_bytes / GIB:.2f} GiB")
    table.add_row("to stay free", f"{result.request.floor_bytes / GIB:.2f} GiB")
    table.add_row("headroom", f"{result.headroom_bytes / GIB:.2f} GiB")
    table.add_row("MemFree", f"{result.memory.free_bytes / GIB:.2f} GiB of {result.memory.total_bytes / GIB:.2f}")
    stdout.print(table)
    _print_context(result, result.request)
    if not result.problems:
        _print_command(result, pack)


def _print_context(result: MemoryPlan, request: PlanRequest) -> None:
    lines = [f"context: {result.context_tokens:,} tokens for {request.server.sequences} at once"]
    if result.cache_tokens:
        lines.append(
            f"KV cache: {result.cache_tokens:,} tokens, {result.token_bytes:,.0f} bytes a token "
            f"(blocks of {result.layout.block_tokens:,} tokens, {result.layout.block_bytes:,} bytes)"
        )
    lines.append(f"longest context that fits: {result.longest_context_tokens:,} tokens")
    stdout.print("\n" + "\n".join(lines), markup=False, highlight=False)


def _print_command(result: MemoryPlan, pack: Path) -> None:
    from glm53_exl3.plan.planner import memory_arguments, memory_environment

    settings = " ".join(f"{name}={value}" for name, value in memory_environment().items())
    flags = f"{settings} {shlex.join(memory_arguments(result))}"
    text = f"memory flags of vllm serve, which glm53-exl3 serve {pack} sets with all others:\n{flags}"
    stdout.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)
