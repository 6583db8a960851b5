"""Command line and environment of vLLM, as pure functions of the options."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True)
class ServerOptions:
    """How a model is served.

    Attributes:
        model: folder of the pack.
        served_name: name clients use.
        port: TCP port.
        host: address to listen on.
        max_model_len_tokens: longest prompt and answer together.
        max_num_seqs: requests in one batch.
        tensor_parallel_size: ranks.
        expert_parallel: whether ranks hold whole experts instead of slices of all.
        enforce_eager: without torch.compile and CUDA graphs.
        dtype: activations; `auto` takes that of the checkpoint.
        kv_cache_memory_bytes: size of the KV cache; None lets vLLM measure.
        extra: further arguments of `vllm serve`, passed on untouched.
    """

    model: Path
    served_name: str
    port: int
    host: str = LOOPBACK
    max_model_len_tokens: int = 8192
    max_num_seqs: int = 1
    tensor_parallel_size: int = 1
    expert_parallel: bool = False
    enforce_eager: bool = False
    dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    extra: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://{self.host}:{self.port}"


def vllm_command(options: ServerOptions) -> list[str]:
    """The command that starts vLLM, in the interpreter that runs this program."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(options.model)]
    command += ["--served-model-name", options.served_name, "--host", options.host, "--port", str(options.port)]
    command += ["--max-model-len", str(options.max_model_len_tokens), "--max-num-seqs", str(options.max_num_seqs)]
    command += ["--tensor-parallel-size", str(options.tensor_parallel_size), "--dtype", options.dtype]
    if options.kv_cache_memory_bytes is not None:
        command += ["--kv-cache-memory-bytes", str(options.kv_cache_memory_bytes)]
    if options.expert_parallel:
        command.append("--enable-expert-parallel")
    if options.enforce_eager:
        command.append("--enforce-eager")
    return [*command, *options.extra]


def vllm_environment(options: ServerOptions, inherited: Mapping[str, str], num_cores: int) -> dict[str, str]:
    """The environment of vLLM: the inherited one, without telemetry.

    Without a GPU vLLM binds each rank to a NUMA node of its own and stops when there are fewer; several ranks
    therefore share the cores unbound, unless the user has bound them.
    """
    environment = {
        **inherited,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # Phases are read from the log; a full pipe buffer would delay them.
        "PYTHONUNBUFFERED": "1",
    }
    if options.tensor_parallel_size > 1:
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        environment.setdefault("OMP_NUM_THREADS", str(max(1, num_cores // options.tensor_parallel_size)))
    return environment
