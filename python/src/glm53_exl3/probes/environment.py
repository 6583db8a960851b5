"""Environment variables that change what the server does behind its back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from glm53_exl3.pins import load_pins
from glm53_exl3.probes.result import Check, CheckResult

ATTENTION: Final = Check("env-attention-backend", "VLLM_ATTENTION_BACKEND", "runtime")
VERSION_CHECK: Final = Check("env-flashinfer-check", "FLASHINFER_DISABLE_VERSION_CHECK", "runtime")
OTHER_PLUGIN: Final = Check("env-other-plugin", "variables of another EXL3 plugin", "runtime")
PLUGINS: Final = Check("env-vllm-plugins", "VLLM_PLUGINS", "runtime")
ALLOCATOR: Final = Check("env-allocator", "allocator of torch", "runtime")
MULTI_NODE: Final = Check("env-multi-node", "variables of several nodes", "runtime")
ARCHITECTURES: Final = Check("env-cuda-arch", "architectures to compile for", "runtime")
VISIBLE: Final = Check("env-visible-gpus", "CUDA_VISIBLE_DEVICES", "runtime")
OFFLINE: Final = Check("env-offline", "offline mode of the Hub", "host")

Variables = Mapping[str, str]

ENTRY_POINT: Final = "glm53_exl3"
_OTHER_PREFIXES: Final = ("VLLM_EXL3_", "EXL3_")
_NODE_PREFIXES: Final = ("NCCL_", "RAY_", "GLOO_", "UCX_")
#: Set by CUDA images, or harmless.
_NODE_HARMLESS: Final = ("NCCL_VERSION", "NCCL_DEBUG")
_NODE_NAMES: Final = ("MASTER_ADDR", "MASTER_PORT", "VLLM_HOST_IP", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_ARCH_NAMES: Final = ("TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST")
_ALLOCATOR_NAMES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OFFLINE_NAMES: Final = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_EXPANDABLE: Final = "expandable_segments:True"


def _unset(names: list[str]) -> str:
    return f"unset {' '.join(names)}"


def _shown(variables: Variables, names: list[str]) -> str:
    return ", ".join(f"{name}={variables[name]}" for name in names)


def is_on(value: str) -> bool:
    """Whether a variable is switched on, as the Hub's library reads it."""
    return value.strip().upper() in {"1", "ON", "YES", "TRUE"}


def check_attention(variables: Variables) -> CheckResult:
    """One backend for all layers cannot be right: target, indexer and draft each need their own."""
    if not variables.get("VLLM_ATTENTION_BACKEND"):
        return ATTENTION.ok("unset")
    names = ["VLLM_ATTENTION_BACKEND"]
    return ATTENTION.fail(f"{_shown(variables, names)} forces one backend on every layer", _unset(names))


def check_version_check(variables: Variables) -> CheckResult:
    """Without it a stale flashinfer-cubin is loaded, which has ended in illegal memory accesses."""
    names = ["FLASHINFER_DISABLE_VERSION_CHECK"]
    if not variables.get(names[0]):
        return VERSION_CHECK.ok("unset")
    return VERSION_CHECK.warn(f"{_shown(variables, names)} hides a stale flashinfer-cubin", _unset(names))


def check_other_plugin(variables: Variables) -> CheckResult:
    """Settings of other plugins do nothing here, which whoever set them should know."""
    names = sorted(name for name in variables if name.startswith(_OTHER_PREFIXES))
    if not names:
        return OTHER_PLUGIN.ok("none")
    return OTHER_PLUGIN.warn(f"{_shown(variables, names)}: of another plugin, without effect here", _unset(names))


def check_plugins(variables: Variables) -> CheckResult:
    """VLLM_PLUGINS is a list of the only plugins that vLLM loads; set but empty, it loads none."""
    allowed = variables.get("VLLM_PLUGINS")
    if allowed is None:
        return PLUGINS.ok("unset, all are loaded")
    if ENTRY_POINT in allowed.split(","):
        return PLUGINS.ok(allowed)
    return PLUGINS.fail(
        f"VLLM_PLUGINS={allowed!r} leaves out {ENTRY_POINT}: vLLM will not know exl3", _unset(["VLLM_PLUGINS"])
    )


def check_allocator(variables: Variables) -> CheckResult:
    """Long prompts after short ones fragment fixed segments until memory ends (vLLM issue 55569)."""
    names = [name for name in _ALLOCATOR_NAMES if variables.get(name)]
    if not names:
        return ALLOCATOR.ok(f"unset; glm53-exl3 serve sets {_EXPANDABLE}")
    if any(_EXPANDABLE in variables[name] for name in names):
        return ALLOCATOR.ok(_shown(variables, names))
    return ALLOCATOR.warn(
        f"{_shown(variables, names)} lacks {_EXPANDABLE}",
        f"export {names[0]}={','.join([variables[names[0]], _EXPANDABLE])}",
    )


def check_multi_node(variables: Variables) -> CheckResult:
    """Settings for a cluster make one Spark wait for network cards and nodes that are not there."""
    names = sorted(
        name
        for name in variables
        if name not in _NODE_HARMLESS and (name.startswith(_NODE_PREFIXES) or name in _NODE_NAMES)
    )
    if not names:
        return MULTI_NODE.ok("none")
    return MULTI_NODE.warn(f"{_shown(variables, names)}: meant for several nodes, this serves on one", _unset(names))


def check_architectures(variables: Variables) -> CheckResult:
    """Kernels compiled for other GPUs fail with "no kernel image"."""
    names = [name for name in _ARCH_NAMES if variables.get(name)]
    wanted = load_pins().gpu_capability
    # SASS of 12.0 runs on 12.1; code for 12.1a or 12.0f does too.
    fitting = (wanted, f"{wanted.split('.', maxsplit=1)[0]}.0")
    wrong = [name for name in names if not any(arch in variables[name] for arch in fitting)]
    if not wrong:
        return ARCHITECTURES.ok(_shown(variables, names) or "unset")
    return ARCHITECTURES.fail(f"{_shown(variables, wrong)} leaves out {wanted}", f"export {wrong[0]}={wanted}a")


def check_visible(variables: Variables) -> CheckResult:
    """An empty list or -1 hides every GPU."""
    value = variables.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return VISIBLE.ok("unset")
    if value.strip() not in {"", "-1", "NoDevFiles", "void", "none"}:
        return VISIBLE.ok(value)
    return VISIBLE.fail(f"CUDA_VISIBLE_DEVICES={value!r} hides the GPU", _unset(["CUDA_VISIBLE_DEVICES"]))


def check_offline(variables: Variables, missing_bytes: int) -> CheckResult:
    """Offline is right with the pack on disk, and keeps it from getting there otherwise."""
    names = [name for name in _OFFLINE_NAMES if is_on(variables.get(name, ""))]
    if not names:
        return OFFLINE.ok("off")
    if missing_bytes:
        return OFFLINE.fail(f"{_shown(variables, names)}, and the pack is not here", _unset(names))
    return OFFLINE.ok(_shown(variables, names))


ENVIRONMENT_CHECKS: Final[tuple[Callable[[Variables], CheckResult], ...]] = (
    check_attention,
    check_version_check,
    check_other_plugin,
    check_plugins,
    check_allocator,
    check_multi_node,
    check_architectures,
    check_visible,
)
