"""Command line and environment of vLLM, as pure functions of the settings and a memory plan."""

from __future__ import annotations

import ipaddress
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from glm53_exl3.kernels.settings import KernelSettings
from glm53_exl3.pins import load_pins
from glm53_exl3.plan.memory import GIB, ServerShape
from glm53_exl3.plan.planner import MemoryPlan, PlanRequest, memory_arguments, memory_environment
from glm53_exl3.serve.api_key import VARIABLE as KEY_VARIABLE
from glm53_exl3.serve.api_key import ApiKey
from glm53_exl3.serve.backend import kernel_environment
from glm53_exl3.serve.profiles import PROFILES, capture_sizes
from glm53_exl3.serve.require_key import MIDDLEWARE
from glm53_exl3.serve.rules import check_rules
from glm53_exl3.serve.settings import LOOPBACK, Settings

_ENTRY_POINT: Final = "vllm.entrypoints.cli.main"
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MASKED: Final = "***"


@dataclass(frozen=True)
class ServerCommand:
    """How vLLM is started, and where it is found then.

    Attributes:
        argv: program and arguments.
        environment: variables that are set or replaced; the rest is inherited.
        url: base URL for clients on this machine.
        served_name: name of the model.
    """

    argv: tuple[str, ...]
    # It may hold the API key.
    environment: Mapping[str, str] = field(repr=False)
    url: str
    served_name: str

    @property
    def headers(self) -> dict[str, str]:
        """What a request to the server has to carry."""
        key = self.environment.get(KEY_VARIABLE)
        return {"Authorization": f"Bearer {key}"} if key else {}

    def whole_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What the process gets."""
        return {**inherited, **self.environment}


def build_command(
    settings: Settings,
    plan: MemoryPlan | None = None,
    *,
    inherited: Mapping[str, str] | None = None,
    api_key: ApiKey | None = None,
    chat_template: Path | None = None,
    num_cores: int = 1,
    node_address: str | None = None,
    python: str = sys.executable,
) -> ServerCommand:
    """The command that serves a pack.

    Args:
        settings: of the server.
        plan: made for `plan_request(settings)`; None lets vLLM measure.
        inherited: environment that vLLM will inherit.
        api_key: that clients must send; None asks for none, whatever is inherited.
        chat_template: as `find_chat_template` gives it.
        num_cores: CPU cores for all ranks of this machine together.
        node_address: of this machine for the others, as `nodes.own_address` finds it; None without others.
        python: interpreter of the runtime.

    Raises:
        SettingError: a rule is broken.
        PlanError: the plan does not fit, and `force` is not set.
        ValueError: the plan was made for something else.
    """
    inherited = inherited or {}
    check_rules(settings, inherited, has_key=api_key is not None)
    if plan is not None:
        _require_same(plan, settings)
        if plan.problems and not settings.force:
            raise plan.problems[0]
    argv = [python, "-m", _ENTRY_POINT, "serve", str(settings.pack)]
    argv += ["--served-model-name", settings.served_name, "--host", settings.host, "--port", str(settings.port)]
    argv += _speculation_arguments(settings)
    argv += ["--load-format", settings.load_format, *PROFILES[settings.profile].arguments]
    argv += _measured_arguments(settings) if plan is None else memory_arguments(plan)
    argv += _parallel_arguments(settings)
    argv += _request_arguments(settings, chat_template)
    if api_key is not None and not settings.headless:
        argv += ["--middleware", MIDDLEWARE]
    return ServerCommand(
        argv=(*argv, *settings.extra),
        environment=_environment(settings, inherited, api_key, num_cores, node_address),
        url=f"http://{_client_host(settings.host)}:{settings.port}",
        served_name=settings.served_name,
    )


def plan_request(settings: Settings, kernels: KernelSettings | None = None) -> PlanRequest:
    """What the memory plan has to be made for.

    Args:
        settings: of the server.
        kernels: what will run the experts on this machine; exllamav3 on a GPU by default.
    """
    # vLLM's own sizes are few with few sequences; the plan's default covers them.
    graphs = len(_sizes(settings)) or ServerShape().num_graphs
    return PlanRequest(
        runtime=settings.runtime,
        context_tokens=settings.context,
        kv_dtype=settings.kv_dtype,
        prefix_caching=settings.prefix_caching,
        floor_bytes=int(settings.floor * GIB),
        kv_cache_bytes=settings.kv_cache_bytes,
        server=ServerShape(
            sequences=settings.sequences,
            max_batched_tokens=settings.batched_tokens,
            speculation=settings.speculation,
            speculative_tokens=settings.speculative_tokens,
            num_graphs=0 if settings.enforce_eager else graphs,
            kernels=kernels or KernelSettings(),
        ),
    )


def render_command(command: ServerCommand) -> str:
    """The command for a shell, a variable or flag a line, with the API key masked."""
    masked = {name: _MASKED if name == KEY_VARIABLE and value else value for name, value in command.environment.items()}
    lines = [f"{name}={shlex.quote(value)}" for name, value in masked.items()]
    line: list[str] = []
    for argument in command.argv:
        if argument.startswith("--"):
            lines.append(" ".join(line))
            line = [" "]
        line.append(shlex.quote(argument))
    return " \\\n".join([*lines, " ".join(line)])


def _require_same(plan: MemoryPlan, settings: Settings) -> None:
    wanted = plan_request(settings)
    # Whether memory is unified and what runs the experts is the host's, not the settings'.
    made = plan.request.server
    if plan.request != replace(wanted, server=replace(wanted.server, unified=made.unified, kernels=made.kernels)):
        raise ValueError("the memory plan was made for other settings")


def _measured_arguments(settings: Settings) -> list[str]:
    """The flags of `memory_arguments` without a plan: vLLM finds the size of the KV cache, unless it is given."""
    argv = ["--max-model-len", str(settings.context), "--max-num-seqs", str(settings.sequences)]
    argv += ["--max-num-batched-tokens", str(settings.batched_tokens), "--kv-cache-dtype", settings.kv_dtype]
    if settings.kv_cache_bytes is not None:
        argv += ["--kv-cache-memory-bytes", str(settings.kv_cache_bytes)]
    return [*argv, "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching"]


def _sizes(settings: Settings) -> tuple[int, ...]:
    """Sizes of graphs that are named to vLLM."""
    return settings.capture_sizes or capture_sizes(
        settings.speculation, settings.speculative_tokens, settings.sequences
    )


def _speculation_arguments(settings: Settings) -> list[str]:
    argv: list[str] = []
    if settings.speculation != "none":
        argv += ["--speculative-config", json.dumps(_speculative_config(settings), separators=(",", ":"))]
    if settings.enforce_eager:
        return [*argv, "--enforce-eager"]
    sizes = _sizes(settings)
    return [*argv, "--cudagraph-capture-sizes", *map(str, sizes)] if sizes else argv


def _speculative_config(settings: Settings) -> dict[str, str | int]:
    """Value of `--speculative-config`, as the recipe has it."""
    if settings.speculation == "mtp":
        return {"method": "mtp", "num_speculative_tokens": settings.speculative_tokens}
    config: dict[str, str | int] = {
        "method": "dflash",
        "model": str(settings.draft),
        "num_speculative_tokens": settings.speculative_tokens,
        # Without it the draft would inherit the target's fp8; the memory plan counts 16 bits.
        "kv_cache_dtype": "auto",
        # With FLASH_ATTN the target's indexer faults at the first change of a cache page (recipe).
        "attention_backend": "TRITON_ATTN",
        "draft_sample_method": "probabilistic",
    }
    if settings.draft_quantization != "none":
        config["quantization"] = settings.draft_quantization
    return config


def _parallel_arguments(settings: Settings) -> list[str]:
    argv = ["--tensor-parallel-size", str(settings.tensor_parallel)] if settings.tensor_parallel > 1 else []
    if settings.expert_parallel:
        argv += ["--enable-expert-parallel"]
    if settings.nodes > 1:
        argv += ["--nnodes", str(settings.nodes), "--node-rank", str(settings.node_rank)]
        argv += ["--master-addr", str(settings.master_address), "--master-port", str(settings.master_port)]
    return [*argv, "--headless"] if settings.headless else argv


def _request_arguments(settings: Settings, chat_template: Path | None) -> list[str]:
    """What requests may hold and how answers are read."""
    argv: list[str] = []
    limits = {"image": settings.images, "video": settings.videos}
    stated = {name: limit for name, limit in limits.items() if limit is not None}
    if stated:
        argv += ["--limit-mm-per-prompt", json.dumps(stated, separators=(",", ":"))]
    if settings.tool_call_parser:
        argv += ["--tool-call-parser", settings.tool_call_parser, "--enable-auto-tool-choice"]
    if settings.reasoning_parser:
        argv += ["--reasoning-parser", settings.reasoning_parser]
    if chat_template is not None:
        argv += ["--chat-template", str(chat_template)]
    return argv


def _environment(
    settings: Settings,
    inherited: Mapping[str, str],
    api_key: ApiKey | None,
    num_cores: int,
    node_address: str | None,
) -> dict[str, str]:
    variables = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Pack and draft are on disk, so nothing has to be asked of the network.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # Phases are read from the log; a full pipe buffer would delay them.
        "PYTHONUNBUFFERED": "1",
    }
    if api_key is not None or inherited.get(KEY_VARIABLE):
        variables[KEY_VARIABLE] = "" if api_key is None else api_key.value
    tuning = memory_environment() | _rank_environment(settings, num_cores)
    # vLLM's processes would otherwise reach each other by the address of the default route: open to the network on one
    # machine, and perhaps not on the link between several.
    address = LOOPBACK if settings.nodes == 1 else node_address
    if address is not None:
        tuning["VLLM_HOST_IP"] = address
    if settings.runtime == "fork":
        # Upstream's wheels run on other GPUs too, so there FlashInfer asks the GPU itself.
        tuning["FLASHINFER_CUDA_ARCH_LIST"] = f"{load_pins().gpu_capability}a"
    return variables | _beside_inherited(tuning, inherited) | kernel_environment(settings)


def _rank_environment(settings: Settings, num_cores: int) -> dict[str, str]:
    """Without a GPU vLLM binds each rank to a NUMA node of its own and stops when there are fewer.

    Several ranks therefore share the cores unbound.
    """
    if settings.local_ranks <= 1:
        return {}
    return {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(1, num_cores // settings.local_ranks)),
    }


def _beside_inherited(tuning: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Tuning variables without those that the user has set; his allocator is only told what it lacks."""
    variables = {name: value for name, value in tuning.items() if name not in inherited}
    stated = next((name for name in _ALLOCATOR_NAMES if inherited.get(name)), None)
    if stated is not None:
        wanted = tuning["PYTORCH_CUDA_ALLOC_CONF"]
        variables.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        if "expandable_segments" not in inherited[stated]:
            variables[stated] = f"{inherited[stated]},{wanted}"
    return variables


def _client_host(host: str) -> str:
    """Where clients on this machine reach a server that listens on `host`."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return LOOPBACK if address.version == 4 else "[::1]"
    return f"[{host}]" if address.version == 6 else host
