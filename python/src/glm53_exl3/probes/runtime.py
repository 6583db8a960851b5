"""Checks of the runtime: torch, FlashInfer, vLLM and the interpreter they are in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from glm53_exl3.pins import RuntimeName, RuntimePin, load_pins
from glm53_exl3.probes.catalogue import CUBIN, CUDA, FLASHINFER, HEADERS, LIBCUDA, MODEL, TORCH, VLLM
from glm53_exl3.probes.interpreter import Fact, RuntimeFacts
from glm53_exl3.probes.result import Check, CheckResult
from glm53_exl3.probes.units import version_numbers

_ARCHITECTURES: Final = ("Glm5NextForConditionalGeneration", "Glm5NextMTPModel")
#: Packages that are compared with flashinfer-python when they are imported.
_BINARY_PACKAGES: Final = ("flashinfer-cubin", "flashinfer-jit-cache")
_NIX: Final = "with Nix: nix run .#serve"


def pip(facts: RuntimeFacts, *arguments: str) -> str:
    """A pip command for the interpreter that was probed."""
    return " ".join((facts.executable, "-m pip", *arguments))


def unavailable(check: Check, facts: RuntimeFacts, name: str, hint: str) -> CheckResult | None:
    """The result of a check whose fact has no value; None when it has one.

    A fact that hung or raised is a failure; one that could not be looked for, because what it needs is not there, is
    skipped, as the other is reported already.
    """
    fact = facts.facts.get(name, Fact(missing="the run of the interpreter"))
    if fact.value is not None:
        return None
    if fact.missing:
        return check.skip(f"needs {fact.missing}")
    if fact.hung:
        by_hand = f"run it by hand: {facts.executable} -c 'import {_BY_HAND[name]}'"
        return check.fail(f"looking for {name} {fact.error}", by_hand)
    return check.fail(fact.error, hint)


_BY_HAND: Final[Mapping[str, str]] = {
    "python": "sysconfig",
    "distributions": "importlib.metadata",
    "driver": "ctypes",
    "torch": "torch",
    "cuda": "torch; torch.cuda.init()",
    "extension": "torch, glm53_exl3_exllamav3_ext",
    "native": "torch, glm53_exl3_kernels",
    "vllm": "vllm",
    "registry": "vllm.model_executor.models.registry",
    "exl3": "glm53_exl3.engine.plugin",
    "kpool-tail": "vllm.v1.attention.backends.mla.indexer",
}


def check_headers(facts: RuntimeFacts) -> CheckResult:
    """Triton and torch.compile compile against Python.h while the server starts."""
    if (broken := unavailable(HEADERS, facts, "python", "name a working interpreter: --python PATH")) is not None:
        return broken
    value = facts.value("python")
    minor = ".".join(str(number) for number in value["version"][:2])
    if value["has_header"]:
        return HEADERS.ok(value["header"])
    return HEADERS.fail(f"{value['header']} is not there", f"sudo apt install python{minor}-dev")


def check_libcuda(facts: RuntimeFacts) -> CheckResult:
    """An interpreter from Nix or a container does not search where the system keeps its driver."""
    if (broken := unavailable(LIBCUDA, facts, "driver", "name a working interpreter: --python PATH")) is not None:
        return broken
    value = facts.value("driver")
    if value["found"]:
        return LIBCUDA.ok("libcuda.so.1 found")
    return LIBCUDA.fail(
        value["error"],
        "with Nix: nix run .#serve, with GLM53_EXL3_DRIVER=FOLDER where the driver is in an unusual place; "
        "a container: docker run --gpus all",
    )


def check_torch(facts: RuntimeFacts) -> CheckResult:
    """The extension is bound to one torch; another version ends in undefined symbols."""
    pins = load_pins()
    install = f"{pip(facts, 'install', f'torch=={pins.torch}', f'torchvision=={pins.torchvision}')}; or {_NIX}"
    if (broken := unavailable(TORCH, facts, "torch", install)) is not None:
        return broken
    version, cuda = facts.value("torch")["version"], facts.value("torch")["cuda"]
    measured = f"{version}, CUDA {cuda or 'none: a CPU build'}"
    if cuda is None or cuda != pins.cuda:
        return TORCH.fail(f"{measured}; the pinned one has CUDA {pins.cuda}", install)
    if version.partition("+")[0] != pins.torch:
        return TORCH.fail(f"{measured}, not {pins.torch}: extensions built for it do not load", install)
    return TORCH.ok(measured)


def check_cuda(facts: RuntimeFacts) -> CheckResult:
    """Whether torch reaches the GPU, and which it is."""
    if (broken := unavailable(CUDA, facts, "cuda", "nvidia-smi shows whether the driver runs")) is not None:
        return broken
    value, wanted = facts.value("cuda"), load_pins().gpu_capability
    if not value["available"]:
        return CUDA.fail(f"no GPU for torch: {value['reason'] or 'no reason given'}", "see the checks gpu and torch")
    if value["capability"] == wanted:
        return CUDA.ok(f"compute capability {wanted}")
    return CUDA.fail(f"compute capability {value['capability']}, not {wanted}", "serve on a GB10")


def check_flashinfer(facts: RuntimeFacts, runtime: RuntimePin) -> CheckResult:
    """The sparse attention of this model exists from one release of FlashInfer on, and vLLM calls one interface."""
    install = pip(facts, "install", "--no-deps", f"flashinfer-python=={runtime.flashinfer_python}")
    if (broken := unavailable(FLASHINFER, facts, "distributions", "name a working interpreter")) is not None:
        return broken
    version = facts.value("distributions")["versions"].get("flashinfer-python")
    if version is None:
        return FLASHINFER.fail("flashinfer-python is not installed", install)
    if version.partition("+")[0] == runtime.flashinfer_python:
        return FLASHINFER.ok(version)
    return FLASHINFER.fail(f"{version}; runtime {runtime.name} has {runtime.flashinfer_python}", install)


def check_cubin(facts: RuntimeFacts) -> CheckResult:
    """A binary package of another version ends the start; a GB10 needs none (flashinfer issue 4781)."""
    if (broken := unavailable(CUBIN, facts, "distributions", "name a working interpreter")) is not None:
        return broken
    versions = facts.value("distributions")["versions"]
    present = {name: versions[name] for name in _BINARY_PACKAGES if name in versions}
    if not present:
        return CUBIN.ok("none, a GB10 needs none")
    measured = ", ".join(f"{name} {version}" for name, version in present.items())
    wanted = versions.get("flashinfer-python", "")
    stale = [name for name, version in present.items() if version.partition("+")[0] != wanted.partition("+")[0]]
    if not stale:
        return CUBIN.ok(measured)
    return CUBIN.fail(f"{measured} beside flashinfer-python {wanted or 'none'}", pip(facts, "uninstall -y", *stale))


def check_vllm(facts: RuntimeFacts, runtime: RuntimePin) -> CheckResult:
    """The version, or the revision, that this release was made for."""
    install = (
        pip(facts, "install", f"vllm=={runtime.vllm_version}")
        if runtime.vllm_version
        else f"{_NIX}; without Nix: --runtime upstream"
    )
    if (broken := unavailable(VLLM, facts, "vllm", install)) is not None:
        return broken
    version = str(facts.value("vllm")["version"])
    if runtime.vllm_version is None:
        return _fork(facts, runtime, version, install)
    if version.partition("+")[0] == runtime.vllm_version:
        return VLLM.ok(version)
    measured = f"{version}; runtime {runtime.name} has {runtime.vllm_version}"
    if version_numbers(version) > version_numbers(runtime.vllm_version):
        return VLLM.warn(f"{measured}, and this release was not tested with a newer one", install)
    return VLLM.fail(f"{measured}; older ones lack fixes that GLM-5.3-Flash needs on a GB10", install)


def _fork(facts: RuntimeFacts, runtime: RuntimePin, version: str, install: str) -> CheckResult:
    """A fork has no version of its own; its revision stands in its metadata, in one of three places."""
    revision = runtime.vllm_revision
    origin = _origin(str(facts.value("distributions").get("vllm_origin", "")))
    told = [str(facts.value("vllm").get("commit", "")), origin, version.partition("+g")[2].partition(".")[0]]
    known = [text.removeprefix("g") for text in told if len(text.removeprefix("g")) >= 7]
    where = f"{version}{f' from {origin}' if origin else ''}"
    if any(revision.startswith(text) or text.startswith(revision) for text in known):
        return VLLM.ok(f"{where}, revision {revision[:9]}")
    measured = f"{where}; runtime fork is {runtime.vllm_repository} at {revision[:9]}"
    if known or ".dev" not in version:
        upstream = load_pins().runtimes["upstream"].vllm_version or ""
        if version.partition("+")[0] == upstream:
            return VLLM.fail(measured, f"this is the other runtime: glm53-exl3 preflight --runtime upstream; or {_NIX}")
        return VLLM.fail(measured, install)
    return VLLM.warn(f"{measured}, and this build does not say what it was made of", install)


def _origin(direct_url: str) -> str:
    """Commit of a distribution installed from git, from its `direct_url.json` (PEP 610)."""
    try:
        vcs = json.loads(direct_url).get("vcs_info", {})
    except (ValueError, AttributeError):
        return ""
    return str(vcs.get("commit_id", "")) if isinstance(vcs, Mapping) else ""


def check_model(facts: RuntimeFacts, runtime: RuntimePin) -> CheckResult:
    """A vLLM that does not know the model falls back to another implementation and fails at the weights."""
    upstream = load_pins().runtimes["upstream"].vllm_version
    hint = f"{_NIX}; or {pip(facts, 'install', f'vllm=={upstream}')} and --runtime upstream"
    if (broken := unavailable(MODEL, facts, "registry", hint)) is not None:
        return broken
    missing = [name for name in _ARCHITECTURES if name not in facts.value("registry")["known"]]
    if missing:
        return MODEL.fail(f"not in the registry of this vLLM: {', '.join(missing)}", hint)
    return MODEL.ok(", ".join(_ARCHITECTURES))


def runtime_checks(runtime: RuntimeName) -> tuple[Callable[[RuntimeFacts], CheckResult], ...]:
    """The checks of this module for one runtime."""
    pin = load_pins().runtimes[runtime]
    return (
        check_headers,
        check_libcuda,
        check_torch,
        check_cuda,
        lambda facts: check_flashinfer(facts, pin),
        check_cubin,
        lambda facts: check_vllm(facts, pin),
        lambda facts: check_model(facts, pin),
    )
