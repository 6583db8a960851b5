"""The compiled extension, checked before its first call: exllamav3 promises no stable interface."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.extension import import_extension
from glm53_exl3.pins import load_pins

MODULE: Final = "glm53_exl3_exllamav3_ext"
_FUNCTIONS: Final = ("exl3_moe", "exl3_moe_max_concurrency", "run_layer")
_BUILD: Final = (
    "build it with tools/extension/build.py exllamav3 (docs/extension.md); with Nix: nix run .#serve-upstream"
)


def load_extension() -> ModuleType:
    """The extension.

    Raises:
        KernelError: `extension-missing`, it is not installed or does not load; `extension-other`, it lacks a function
            or its exl3_moe takes another number of arguments than the plugin passes.
    """
    pins = load_pins()
    module, missing = import_extension(MODULE, _FUNCTIONS, _BUILD)
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
