"""Which backend will run the experts, and what speaks against it before 91 GiB are loaded.

The plugin decides for each layer once its weights are there (`kernels/select.py`). Everything that it would refuse can
be known earlier, from the settings, the GPU, the installed extension and the headers of the pack.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.shape import MAX_TOP_K
from glm53_exl3.kernels.settings import DECODE_VARIABLE, KERNEL_VARIABLE, KernelSettings, kernel_settings
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.serving import layers_without_kernel
from glm53_exl3.pins import load_pins
from glm53_exl3.probes.gpu import read_gpus
from glm53_exl3.probes.host import Host
from glm53_exl3.probes.plugin import check_extension
from glm53_exl3.serve.settings import Settings

#: What the check of the extension looks at; vLLM is not imported for it.
_FACTS: Final = ("torch", "cuda", "extension")
_REFERENCE: Final = f"--kernel reference --enforce-eager with {DECODE_VARIABLE}=call, exact and far slower"


def chosen_kernels(settings: Settings, environment: Mapping[str, str]) -> KernelSettings:
    """What the plugin will read: the setting before the environment that vLLM inherits.

    Raises:
        KernelError: `setting-value`, a variable with another value than its choices.
    """
    return kernel_settings(environment, backend=settings.kernel)


def kernel_environment(settings: Settings) -> dict[str, str]:
    """The variable that tells every process of vLLM, where there is a setting."""
    return {} if settings.kernel is None else {KERNEL_VARIABLE: settings.kernel}


def require_runnable(settings: Settings, kernels: KernelSettings, host: Host) -> bool:
    """Refuse a backend that this machine cannot run as asked for; whether exllamav3's kernels are to run.

    Args:
        settings: of the server.
        kernels: as :func:`chosen_kernels` gives them.
        host: the machine.

    Raises:
        KernelError: `backend-device`, exllamav3 without a GPU; `reference-graphs`, CUDA graphs of the reference.
    """
    seen = read_gpus(host)
    if not seen.gpus:
        if kernels.backend == "exllamav3":
            raise KernelError(
                "backend-device",
                "the exllamav3 backend is asked for on a machine without a GPU",
                expected="a GPU that nvidia-smi lists",
                found=seen.error or "none",
                hint=_unchosen(settings),
            )
        return False
    if kernels.backend != "reference":
        return True
    if not settings.enforce_eager:
        raise KernelError(
            "reference-graphs",
            "the reference backend reads its routing on the host, so no CUDA graph can hold it",
            expected="another backend, or an eager engine",
            found="--kernel reference" if settings.kernel else f"{KERNEL_VARIABLE}=reference",
            hint=f"{_unchosen(settings)}; or --enforce-eager with {DECODE_VARIABLE}=call, exact and far slower",
        )
    return False


def require_layers(settings: Settings, kernels: KernelSettings, inventory: Inventory) -> None:
    """Refuse a pack that exllamav3's kernels cannot run where nothing else may.

    Args:
        settings: of the server.
        kernels: its choice, not `reference`.
        inventory: of the pack, sound.

    Raises:
        KernelError: `exllamav3-codebook`, `exllamav3-top-k`.
    """
    top_k = inventory.shape.experts_per_token if inventory.shape else 0
    if top_k > MAX_TOP_K:
        raise KernelError(
            "exllamav3-top-k",
            f"config.json says {top_k} experts a token",
            expected=f"at most {MAX_TOP_K}",
            hint=_REFERENCE,
        )
    unused = inventory.shape.mtp_layers if inventory.shape and settings.speculation != "mtp" else ()
    without = [layer for layer in layers_without_kernel(inventory) if layer.layer not in unused]
    if not without or not must_run_exllamav3(settings, kernels):
        return
    first, more = without[0], len(without) - 1
    raise KernelError(
        "exllamav3-codebook",
        f"{first.block} has the codebook {first.projections['gate_proj'].codebook}"
        + (f", and {more} more layer{'s' if more > 1 else ''}" if more else ""),
        expected="mcg or mul1: exllamav3 has no other MoE kernels, and nothing else can be recorded in CUDA graphs",
        hint=f"take a pack of mcg or mul1; or {_REFERENCE}",
    )


def extension_fault(host: Host) -> KernelError | None:
    """What is wrong with the extension in the interpreter that vLLM will run in, by preflight's own check.

    The same ids as the plugin's: `extension-missing`, `extension-other`.
    """
    facts = host.runtime(sys.executable, _FACTS)
    found = check_extension(facts)
    if found.status != "fail":
        return None
    pins = load_pins()
    return KernelError(
        "extension-other" if facts.value("extension") else "extension-missing",
        found.measured,
        expected=f"the extension of exllamav3 {pins.exllamav3_version}, built for torch {pins.torch} and this GPU",
        hint=f"{found.hint}; or {_REFERENCE}",
    )


def must_run_exllamav3(settings: Settings, kernels: KernelSettings) -> bool:
    """Whether nothing else will do on a GPU: it is asked for by name, or CUDA graphs leave no other backend."""
    return kernels.backend == "exllamav3" or (kernels.backend == "auto" and not settings.enforce_eager)


def _unchosen(settings: Settings) -> str:
    return "leave --kernel out" if settings.kernel else f"unset {KERNEL_VARIABLE}"
