"""Where kernels were measured."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch

from glm53_exl3.bench.conditions import load_average, machine_conditions, program_conditions
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.extension import load_extension
from glm53_exl3.kernels.native import extension as native_extension
from glm53_exl3.probes.gpu import read_gpus
from glm53_exl3.probes.host import Host, LiveHost


def describe_machine(device: torch.device, host: Host | None = None) -> dict[str, Any]:
    """Machine, GPU, torch and the program; None for what is not there or not known."""
    host = host or LiveHost()
    whole = machine_conditions(host, runs_server=True)
    return {
        **{name: whole[name] for name in ("architecture", "kernel", "cpu", "cores", "memory_bytes")},
        "load_average": load_average(host),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": _gpu(device, host) if device.type == "cuda" else None,
        "extension": _extension() if device.type == "cuda" else None,
        "native": _native() if device.type == "cuda" else None,
        "program": program_conditions(host),
    }


def _gpu(device: torch.device, host: Host) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": _driver(host),
    }


def _driver(host: Host) -> str | None:
    try:
        gpus = read_gpus(host).gpus
    except TimeoutError:
        return None
    # One driver serves all GPUs of a machine.
    return gpus[0][2] if gpus else None


def _extension() -> dict[str, Any] | None:
    try:
        module = load_extension()
    except KernelError:
        return None
    return {
        "revision": module.source_revision,
        "arch_list": module.arch_list,
        "moe_arity": module.moe_arity,
    }


def _native() -> dict[str, Any] | None:
    try:
        module = native_extension.load_extension()
    except KernelError:
        return None
    return {"version": module.version, "arch_list": module.arch_list}


def free_bytes(device: torch.device) -> int:
    """Bytes of memory that nothing uses."""
    if device.type == "cuda":
        give_back(device)
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def give_back(device: torch.device) -> None:
    """Free what torch keeps of tensors that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def l2_bytes(device: torch.device) -> int:
    """Bytes of the GPU's L2 cache; 0 for a CPU, whose caches are not looked at."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0
