"""Compiled extensions, checked before their first call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from glm53_exl3.errors import KernelError
from glm53_exl3.pins import capabilities, load_pins


def import_extension(name: str, functions: Sequence[str], build: str) -> tuple[ModuleType, list[str]]:
    """An extension, and which of the functions it lacks.

    Args:
        name: of the module.
        functions: that the plugin calls.
        build: how to build it, for the hint.

    Raises:
        KernelError: `extension-missing`, it is not installed or does not load.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise KernelError(
            "extension-missing",
            f"{name} does not load: {error}",
            expected=f"the extension, built for torch {load_pins().torch}",
            hint=build,
        ) from error
    return module, [function for function in functions if not hasattr(module, function)]


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
            f"{module.__name__} has no code for this GPU",
            expected=f"code for {gpu}",
            found=f"code for {found}",
            hint=f"build it with --arch {gpu}{'a' if capability[0] >= 9 else ''}: docs/extension.md",
        )
