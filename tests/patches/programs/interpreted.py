"""Import before vLLM: its Triton kernels then run in Triton's interpreter, and Glm5Next imports without torchvision.

What a program asks of this module is the ground the release stands on, not what is tested: a driver that says it is
there, names that text models import and never call, and modules of a package without its __init__.py.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import triton.backends


class _Driver:
    """vLLM on a CPU uses Triton only where a backend called cpu is active; the interpreter itself needs no driver."""

    @staticmethod
    def is_active() -> bool:
        return True

    @staticmethod
    def get_current_target() -> types.SimpleNamespace:
        return types.SimpleNamespace(backend="cpu", arch="interpreter", warp_size=1)


triton.backends.backends["cpu"] = types.SimpleNamespace(driver=_Driver)


class _Names(type):
    """Has every attribute, such as the members of an enumeration, as a name of its own."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Absent(types.ModuleType):
    """A module of which every name can be imported and none does anything."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


class _AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    packages = ("torchvision",)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


if importlib.util.find_spec("torchvision") is None:
    # transformers looks for torchvision once, and must not find this one.
    importlib.import_module("transformers.models.auto.image_processing_auto")
    sys.meta_path.insert(0, _AbsentFinder())


def bare(*packages: str) -> None:
    """Make packages importable without running their __init__.py, which imports whole models."""
    for name in packages:
        if name in sys.modules:
            continue
        parent, _, leaf = name.rpartition(".")
        importlib.import_module(parent)
        bare_module = types.ModuleType(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        bare_module.__path__ = list(spec.submodule_search_locations)
        bare_module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = bare_module
        setattr(sys.modules[parent], leaf, bare_module)


def main(measure: Callable[..., dict[str, Any]]) -> None:
    """Write what `measure` finds to the file in the first argument, given the JSON of the second as keywords."""
    found = measure(**json.loads(sys.argv[2]))
    Path(sys.argv[1]).write_text(json.dumps(found))
