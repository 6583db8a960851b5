"""The compiled extension, checked before its first call: exllamav3 promises no stable interface."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from glm53_exl3.errors import KernelError
from glm53_exl3.pins import capabilities, load_pins

MODULE: Final = "glm53_exl3_exllamav3_ext"
_FUNCTIONS: Final = ("exl3_moe", "exl3_moe_max_concurrency", "run_layer")
_BUILD: Final = (
    "build it with tools/exllamav3_extension/build.py (docs/extension.md); with Nix: nix run .#serve-upstream"
)


def load_extension() -> ModuleType:
    """The extension.

    Raises:
        KernelError: `extension-missing`, it is not installed or does not load; `extension-other`, it lacks a function
            or its exl3_moe takes another number of arguments than the plugin passes.
    """
    pins = load_pins()
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise KernelError(
            "extension-missing",
            f"{MODULE} does not load: {error}",
            expected=f"the extension, built for torch {pins.torch}",
            hint=_BUILD,
        ) from error
    missing = [name for name in _FUNCTIONS if not hasattr(module, name)]
    arity = getattr(module, "moe_arity", None)
    if missing or arity != pins.moe_arity:
        raise KernelError(
            "extension-other",
            f"{MODULE} was built from another source"
            + (f", it lacks {', '.join(missing)}" if missing else f": exl3_moe takes {arity} arguments"),
            expected=f"exl3_moe of {pins.moe_arity} arguments, as exllamav3 {pins.exllamav3_version} has",
            found=f"{getattr(module, '__file__', MODULE)}, revision {getattr(module, 'source_revision', 'unknown')}",
            hint=_BUILD,
        )
    return module


def require_arch(module: ModuleType, capability: tuple[int, int]) -> None:
    """Refuse an extension without code for a GPU, whose first launch would fail with no more than a number.

    Args:
        module: the extension; `arch_list` holds what it was compiled for, as `12.1a` or `9.0a 12.1a`.
        capability: of the GPU, major and minor.

    Raises:
        KernelError: `extension-other`.
    """
    found = str(module.arch_list)
    gpu = f"{capability[0]}.{capability[1]}"
    if gpu not in capabilities(found):
        raise KernelError(
            "extension-other",
            f"{MODULE} has no code for this GPU",
            expected=f"code for {gpu}",
            found=f"code for {found}",
            hint=f"build it with --arch {gpu}{'a' if capability[0] >= 9 else ''}: docs/extension.md",
        )
