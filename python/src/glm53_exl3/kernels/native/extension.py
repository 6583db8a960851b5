"""The compiled extension of the native kernels, checked before its first call."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from glm53_exl3 import __version__
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.extension import import_extension

MODULE: Final = "glm53_exl3_kernels"
_FUNCTIONS: Final = ("run_layer", "scratch_bytes")
_BUILD: Final = "build it with tools/extension/build.py native (docs/extension.md); with Nix: nix run .#serve-upstream"


def load_extension() -> ModuleType:
    """The extension.

    Raises:
        KernelError: `extension-missing`, it is not installed or does not load; `extension-other`, it is of another
            version of this package, whose calls may differ.
    """
    module, missing = import_extension(MODULE, _FUNCTIONS, _BUILD)
    version = getattr(module, "version", "unknown")
    if missing or version != __version__:
        raise KernelError(
            "extension-other",
            f"{MODULE} was built for another version of glm53-exl3"
            + (f", it lacks {', '.join(missing)}" if missing else ""),
            expected=__version__,
            found=f"{version}, {getattr(module, '__file__', MODULE)}",
            hint=_BUILD,
        )
    return module
