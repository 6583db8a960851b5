"""Which backend will run the experts, and what speaks against it before 91 GiB are loaded.

The plugin decides for each layer once its weights are there (`kernels/select.py`). Nearly everything that it would
refuse can be known earlier, from the settings, the GPU, the installed extensions and the headers of the pack; whether
kernels compute rightly on this GPU it finds out itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from glm53_exl3 import __version__
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.shape import MAX_TOP_K
from glm53_exl3.kernels.settings import DECODE_VARIABLE, KERNEL_VARIABLE, KernelSettings, kernel_settings
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.serving import layers_outside
from glm53_exl3.pins import load_pins
from glm53_exl3.probes.catalogue import EXTENSION, NATIVE
from glm53_exl3.probes.gpu import read_gpus
from glm53_exl3.probes.host import Host
from glm53_exl3.probes.interpreter import RuntimeFacts
from glm53_exl3.probes.plugin import check_kernels
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.serve.settings import Settings

#: The check of preflight that tells whether a compiled backend can run.
CHECKS: Final[Mapping[str, Check]] = {"native": NATIVE, "exllamav3": EXTENSION}
#: The fact behind each check.
_FACT: Final = {"native": "native", "exllamav3": "extension"}
#: What these checks look at; vLLM is not imported for it.
_FACTS: Final = ("torch", "cuda", *_FACT.values())
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


def compiled_choice(kernels: KernelSettings) -> frozenset[str]:
    """Compiled backends that a choice allows: both for `auto`, none for `reference`."""
    return frozenset(CHECKS if kernels.backend == "auto" else {kernels.backend} & set(CHECKS))


def require_runnable(settings: Settings, kernels: KernelSettings, host: Host) -> frozenset[str]:
    """Refuse a backend that this machine cannot run as asked for; the compiled backends that may run here.

    Args:
        settings: of the server.
        kernels: as :func:`chosen_kernels` gives them.
        host: the machine.

    Raises:
        KernelError: `backend-device`, a compiled backend by name without a GPU; `reference-graphs`, CUDA graphs of the
            reference.
    """
    seen = read_gpus(host)
    if not seen.gpus:
        if kernels.backend in CHECKS:
            raise KernelError(
                "backend-device",
                f"the {kernels.backend} backend is asked for on a machine without a GPU",
                expected="a GPU that nvidia-smi lists",
                found=seen.error or "none",
                hint=_unchosen(settings),
            )
        return frozenset()
    if kernels.backend == "reference" and not settings.enforce_eager:
        raise KernelError(
            "reference-graphs",
            "the reference backend reads its routing on the host, so no CUDA graph can hold it",
            expected="another backend, or an eager engine",
            found="--kernel reference" if settings.kernel else f"{KERNEL_VARIABLE}=reference",
            hint=f"{_unchosen(settings)}; or --enforce-eager with {DECODE_VARIABLE}=call, exact and far slower",
        )
    return compiled_choice(kernels)


def require_layers(settings: Settings, kernels: KernelSettings, runs: KernelSettings, inventory: Inventory) -> None:
    """Refuse a pack that no compiled backend can run where nothing else may.

    Args:
        settings: of the server.
        kernels: its choice, not `reference`.
        runs: what this machine has of it, as `serve.gate.runnable_kernels` gives it, not `reference`.
        inventory: of the pack, sound.

    Raises:
        KernelError: `exllamav3-top-k`, `exllamav3-bits` and `exllamav3-codebook`, where exllamav3 is asked for by name
            or alone is installed; `native-codebook`.
    """
    backends = compiled_choice(runs)
    top_k = inventory.shape.experts_per_token if inventory.shape else 0
    if top_k > MAX_TOP_K:
        backends -= {"exllamav3"}
    if not backends:
        raise KernelError(
            "exllamav3-top-k",
            f"config.json says {top_k} experts a token",
            expected=f"at most {MAX_TOP_K}",
            hint=f"{_native_instead(settings, kernels)}; or {_REFERENCE}",
        )
    unused = inventory.shape.mtp_layers if inventory.shape and settings.speculation != "mtp" else ()
    outside = [layer for layer in layers_outside(inventory, backends) if layer.layer not in unused]
    if not outside or not must_run_compiled(settings, kernels):
        return
    codebooks = sorted({projection.codebook for projection in outside[0].projections.values()})
    more = len(outside) - 1
    what = f"{outside[0].block} has the codebook {' and '.join(codebooks)}"
    what += f", and {more} more layer{'s' if more > 1 else ''}" if more else ""
    if len(codebooks) > 1:
        raise KernelError(
            "native-codebook" if "native" in backends else "exllamav3-codebook",
            what,
            expected="one codebook for gate, up and down: nothing else can be recorded in CUDA graphs",
            hint=_REFERENCE,
        )
    if codebooks != ["3inst"]:
        raise KernelError(
            "exllamav3-bits",
            f"{outside[0].block} has experts of different bits",
            expected="one bit rate for all experts of a layer: exllamav3's kernel takes no more",
            hint=f"{_native_instead(settings, kernels)}; or {_REFERENCE}",
        )
    raise KernelError(
        "exllamav3-codebook",
        what,
        expected="mcg or mul1: exllamav3 has no other MoE kernels",
        hint=f"{_native_instead(settings, kernels)}; or {_REFERENCE}",
    )


def extension_facts(host: Host) -> RuntimeFacts:
    """What the checks of the extensions look at, in the interpreter that vLLM will run in."""
    return host.runtime(sys.executable, _FACTS)


def extension_results(facts: RuntimeFacts) -> tuple[CheckResult, ...]:
    """What preflight's own checks say of the extensions."""
    return check_kernels(facts)


def lacking(results: Iterable[CheckResult], backends: frozenset[str]) -> dict[str, CheckResult]:
    """Backends that cannot run, of those that may, with what preflight found; a check that was skipped says nothing."""
    by_id = {result.id: result for result in results}
    found = {name: by_id[check.id] for name, check in CHECKS.items() if name in backends and check.id in by_id}
    return {name: result for name, result in found.items() if result.status in ("fail", "warn")}


def forbidding(lacks: Mapping[str, CheckResult], settings: Settings, kernels: KernelSettings) -> frozenset[str]:
    """Backends without which the engine must not start; under `auto` one is a warning where the other runs."""
    if not must_run_compiled(settings, kernels):
        return frozenset()
    return frozenset(name for name, result in lacks.items() if kernels.backend != "auto" or result.status == "fail")


def extension_fault(name: str, result: CheckResult, facts: RuntimeFacts) -> KernelError:
    """What is wrong with the extension of a backend, with the ids of the plugin.

    Args:
        name: of the backend.
        result: what its check found.
        facts: behind it.

    Returns:
        `extension-missing` or `extension-other`.
    """
    pins = load_pins()
    source = f"exllamav3 {pins.exllamav3_version}" if name == "exllamav3" else f"glm53-exl3 {__version__}"
    return KernelError(
        "extension-other" if facts.value(_FACT[name]) else "extension-missing",
        result.measured,
        expected=f"the extension of {source}, built for torch {pins.torch} and this GPU",
        hint=f"{result.hint}; or {_REFERENCE}",
    )


def without(kernels: KernelSettings, lacks: Iterable[str]) -> KernelSettings:
    """What is left of a choice on a GPU where some compiled backends cannot run."""
    left = compiled_choice(kernels) - set(lacks)
    if left == compiled_choice(kernels):
        return kernels
    return replace(kernels, backend="native" if "native" in left else "exllamav3" if left else "reference")


def must_run_compiled(settings: Settings, kernels: KernelSettings) -> bool:
    """Whether only kernels will do on a GPU: they are asked for by name, or CUDA graphs leave no other backend."""
    return kernels.backend in CHECKS or (kernels.backend == "auto" and not settings.enforce_eager)


def _native_instead(settings: Settings, kernels: KernelSettings) -> str:
    if kernels.backend == "exllamav3":
        return f"{_unchosen(settings)}: this project's own kernels, where they are installed, run it"
    return "install this project's own kernels, which run it (docs/extension.md)"


def _unchosen(settings: Settings) -> str:
    return "leave --kernel out" if settings.kernel else f"unset {KERNEL_VARIABLE}"
