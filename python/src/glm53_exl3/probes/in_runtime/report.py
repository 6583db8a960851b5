"""Reports facts about the interpreter it runs in, one JSON line each.

Run as a script by the interpreter of the runtime, which need not have this package: only the standard library is
imported by name, everything else through importlib and on purpose late. Before a fact is looked for its name is
written, so that whoever reads the lines knows what hangs.

    python report.py FACT...
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

EXTENSION = "glm53_exl3_exllamav3_ext"
#: What the plugin calls, `kernels/exllamav3/extension.py`.
SYMBOLS = ("exl3_moe", "exl3_moe_max_concurrency", "run_layer")
NATIVE = "glm53_exl3_kernels"
#: What the plugin calls of it, `kernels/native/extension.py`.
NATIVE_SYMBOLS = ("run_layer", "scratch_bytes")
ARCHITECTURES = ("Glm5NextForConditionalGeneration", "Glm5NextMTPModel")
PLUGIN_GROUP = "vllm.general_plugins"


def python() -> dict[str, Any]:
    """Version, and whether Triton could compile against it."""
    header = os.path.join(sysconfig.get_path("include"), "Python.h")  # noqa: PTH118 - pathlib may be what is broken
    return {"version": list(sys.version_info[:3]), "header": header, "has_header": os.path.exists(header)}  # noqa: PTH110


def distributions() -> dict[str, Any]:
    """Versions of everything installed, plugins of vLLM, and where vLLM came from."""
    from importlib import metadata

    versions: dict[str, str] = {}
    for one in metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        # The first on the path is the one that is imported.
        versions.setdefault(name, one.version)
    plugins = [
        {"name": point.name, "value": point.value, "distribution": point.dist.name if point.dist else ""}
        for point in metadata.entry_points(group=PLUGIN_GROUP)
    ]
    origin = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        origin = metadata.distribution("vllm").read_text("direct_url.json") or ""
    return {"versions": versions, "plugins": plugins, "vllm_origin": origin}


def driver() -> dict[str, Any]:
    """Whether this interpreter finds the driver's library."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"found": False, "error": str(error)}
    return {"found": True, "error": ""}


def torch() -> dict[str, Any]:
    """Version of torch and of the CUDA it is built with."""
    module = importlib.import_module("torch")
    return {"version": module.__version__, "cuda": module.version.cuda}


def cuda() -> dict[str, Any]:
    """Whether torch can use a GPU, and which."""
    cuda_module = importlib.import_module("torch").cuda
    if not cuda_module.is_available():
        reason = ""
        try:
            cuda_module.init()
        except Exception as error:  # torch raises AssertionError or RuntimeError, by build
            reason = str(error).splitlines()[0]
        return {"available": False, "capability": "", "reason": reason}
    major, minor = cuda_module.get_device_capability(0)
    return {"available": True, "capability": f"{major}.{minor}", "reason": ""}


def extension() -> dict[str, Any]:
    """The kernels of exllamav3: symbols, the number of arguments, and the GPUs that they were compiled for."""
    importlib.import_module("torch")  # its libraries have to be loaded before an extension's
    module = importlib.import_module(EXTENSION)
    missing = [name for name in SYMBOLS if not hasattr(module, name)]
    arity = None if SYMBOLS[0] in missing else count_arguments(getattr(module, SYMBOLS[0]))
    return {
        "file": getattr(module, "__file__", "") or "",
        "missing": missing,
        "arity": arity,
        "arch_list": str(getattr(module, "arch_list", "")),
    }


def native() -> dict[str, Any]:
    """This project's own kernels: symbols, the version of this package that they belong to, and their GPUs."""
    importlib.import_module("torch")
    module = importlib.import_module(NATIVE)
    return {
        "file": getattr(module, "__file__", "") or "",
        "missing": [name for name in NATIVE_SYMBOLS if not hasattr(module, name)],
        "version": str(getattr(module, "version", "")),
        "arch_list": str(getattr(module, "arch_list", "")),
    }


def count_arguments(function: Any) -> int | None:
    """Positional arguments of a function, None when neither signature nor pybind11's docstring tells.

    pybind11 writes `name(arg0: type, ..., argN: type) -> type` as the first line of the docstring.
    """
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        pass
    line = (getattr(function, "__doc__", None) or "").strip().splitlines()[:1]
    start, end = (line[0].find("("), line[0].rfind(")")) if line else (-1, -1)
    if start < 0 or end < start:
        return None
    inside = line[0][start + 1 : end]
    depth, commas = 0, 0
    for character in inside:
        depth += (character in "([{") - (character in ")]}")
        commas += character == "," and depth == 0
    return commas + 1 if inside.strip() else 0


def vllm() -> dict[str, Any]:
    """Version of vLLM and the commit it was built from."""
    module = importlib.import_module("vllm")
    commit = ""
    with contextlib.suppress(ImportError):
        commit = str(getattr(importlib.import_module("vllm._version"), "__commit_id__", None) or "")
    return {"version": module.__version__, "commit": commit}


def registry() -> dict[str, Any]:
    """Whether vLLM knows the model and its MTP layer."""
    known = set(importlib.import_module("vllm.model_executor.models.registry").ModelRegistry.get_supported_archs())
    return {"known": [name for name in ARCHITECTURES if name in known]}


def exl3() -> dict[str, Any]:
    """Which class `exl3` is after vLLM has loaded its plugins."""
    importlib.import_module("vllm.plugins").load_general_plugins()
    quantization = importlib.import_module("vllm.model_executor.layers.quantization")
    if "exl3" not in quantization.QUANTIZATION_METHODS:
        # vLLM only logs that a plugin failed; loading ours again says why.
        reason = ""
        try:
            importlib.import_module("glm53_exl3.engine").register()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"module": "", "reason": reason}
    return {"module": quantization.get_quantization_config("exl3").__module__, "reason": ""}


def kpool_tail() -> dict[str, Any]:
    """How vLLM maps the tail cache of the K-pool indexer, see the file beside this one."""
    from importlib import util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kpool_tail.py")  # noqa: PTH100, PTH118, PTH120
    spec = util.spec_from_file_location("kpool_tail", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.examine())


FACTS: dict[str, Callable[[], dict[str, Any]]] = {
    "python": python,
    "distributions": distributions,
    "driver": driver,
    "torch": torch,
    "cuda": cuda,
    "extension": extension,
    "native": native,
    "vllm": vllm,
    "registry": registry,
    "exl3": exl3,
    "kpool-tail": kpool_tail,
}


def main(wanted: list[str]) -> None:
    """Look for each fact and write it."""
    # The script's own folder must not hide modules of the runtime.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]  # noqa: PTH100
    # Libraries print to standard output when they are imported; the lines go through a copy of it.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def write(line: dict[str, Any]) -> None:
        lines.write(json.dumps(line) + "\n")
        lines.flush()

    for name in wanted:
        write({"begin": name})
        try:
            write({"fact": name, "value": FACTS[name]()})
        except BaseException as error:  # SystemExit of a library too
            write({"fact": name, "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main(sys.argv[1:])
    # A library's thread or exit handler must not keep the process.
    sys.stderr.flush()
    os._exit(0)
