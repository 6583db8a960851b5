"""Under which conditions a server is measured: what two receipts must have in common to be compared."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import glm53_exl3
from glm53_exl3.bench.endpoint import Endpoint, ServedModel
from glm53_exl3.bench.server_process import ServerProcess
from glm53_exl3.pack.files import CONFIG_FILE, SHARD_GLOB, read_json
from glm53_exl3.pack.manifest import read_manifest
from glm53_exl3.probes.gpu import read_gpus
from glm53_exl3.probes.host import Host
from glm53_exl3.probes.memory import MEMINFO, parse_meminfo

_CPU_NAME: Final = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)
_LSCPU_NAME: Final = re.compile(r"^\s*Model name:\s*(.+)$", re.MULTILINE)
_PROCESSOR: Final = re.compile(r"^processor\s*:", re.MULTILINE)
_REVISION: Final = re.compile(r"[0-9a-f]{40}(?:-dirty)?")


@dataclass(frozen=True)
class Server:
    """What is known of the server.

    Attributes:
        endpoint: where it is.
        model: what it serves.
        vllm_version: None when it is not vLLM.
        process: of this machine, or why it was not found.
    """

    endpoint: Endpoint
    model: ServedModel
    vllm_version: str | None
    process: ServerProcess | str


def server_conditions(server: Server) -> dict[str, Any]:
    """Of the server; None for what is not known."""
    process = server.process if isinstance(server.process, ServerProcess) else None
    return {
        "vllm_version": server.vllm_version,
        "model": server.model.name,
        "max_model_len_tokens": server.model.max_model_len_tokens,
        "flags": dict(process.flags) if process else None,
        "environment": dict(process.environment) if process and process.environment is not None else None,
    }


def pack_folder(given: Path | None, server: Server) -> Path | None:
    """The folder of the pack: the one that was given, else the one that the server's command line names."""
    if given is not None:
        return given
    named = Path(server.process.model) if isinstance(server.process, ServerProcess) and server.process.model else None
    return named if named is not None and named.is_absolute() and (named / CONFIG_FILE).is_file() else None


def pack_conditions(folder: Path | None) -> dict[str, Any]:
    """Of the pack; None for what is not known, as a commit is when it was not fetched by this project.

    Raises:
        PackError: the folder has no readable `config.json`, or an unreadable manifest.
    """
    if folder is None:
        return {"repository": None, "commit": None, "config_sha256": None, "weight_bytes": None}
    read_json(folder / CONFIG_FILE)
    manifest = read_manifest(folder)
    return {
        "repository": manifest.repository if manifest else None,
        "commit": manifest.commit if manifest else None,
        "config_sha256": hashlib.sha256((folder / CONFIG_FILE).read_bytes()).hexdigest(),
        "weight_bytes": sum(shard.stat().st_size for shard in folder.glob(SHARD_GLOB) if shard.is_file()),
    }


def machine_conditions(host: Host, *, runs_server: bool) -> dict[str, Any]:
    """Of this machine, which is the server's only when `runs_server`."""
    memory = parse_meminfo(host.read_text(str(MEMINFO)) or "")
    cpu_info = host.read_text("/proc/cpuinfo") or ""
    return {
        "runs": "server and client" if runs_server else "client",
        "architecture": host.machine(),
        "kernel": host.kernel(),
        "cpu": _cpu_name(host, cpu_info),
        "cores": len(_PROCESSOR.findall(cpu_info)) or None,
        "memory_bytes": memory.total_bytes or None,
        "gpus": _gpus(host),
    }


def _cpu_name(host: Host, cpu_info: str) -> str | None:
    match = _CPU_NAME.search(cpu_info)
    if match is None:
        # On ARM the kernel gives numbers, which lscpu knows by name; a GB10 has two kinds of core.
        try:
            output = host.run("lscpu")
        except TimeoutError:
            return None
        names = _LSCPU_NAME.findall(output.stdout) if output is not None else []
        return ", ".join(name.strip() for name in names) or None
    return match.group(1).strip()


def _gpus(host: Host) -> list[str] | None:
    if host.which("nvidia-smi") is None:
        return []
    try:
        found = read_gpus(host)
    except TimeoutError:
        return None
    if found.error:
        return None
    return [f"{name} ({capability}), driver {driver}" for name, capability, driver in found.gpus]


def program_conditions(host: Host) -> dict[str, Any]:
    """Of this program; no revision when it is installed and not run from a checkout."""
    source = Path(glm53_exl3.__file__)
    return {"version": glm53_exl3.__version__, "revision": _revision(host, source), "python": platform.python_version()}


def _revision(host: Host, source: Path) -> str | None:
    """Commit of the checkout that a file belongs to, with `-dirty` when something of it was changed."""
    # Looking must not take the lock that somebody else's commit needs.
    git = ("git", "--no-optional-locks", "-C", str(source.parent))
    try:
        tracked = host.run(*git, "ls-files", "--error-unmatch", source.name)
        if tracked is None or tracked.returncode:
            return None
        output = host.run(*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except TimeoutError:
        return None
    text = output.stdout.strip() if output is not None else ""
    return text if _REVISION.fullmatch(text) else None


def load_average(host: Host) -> float | None:
    """Processes that wanted to run in the last minute, on average."""
    text = host.read_text("/proc/loadavg")
    return float(text.split()[0]) if text else None


def facts(server: Server, pack: Path | None, host: Host) -> Mapping[str, Any]:
    """What was so at the time and is not compared."""
    memory = parse_meminfo(host.read_text(str(MEMINFO)) or "")
    found = isinstance(server.process, ServerProcess)
    return {
        "url": server.endpoint.url,
        "server_process": "found" if found else server.process,
        "pack": str(pack) if pack else None,
        "available_memory_bytes": memory.available_bytes,
        "load_average": load_average(host),
    }
