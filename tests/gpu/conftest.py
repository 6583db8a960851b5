"""GPU tests of the backends; all skip without a GPU, and those of a backend without its compiled extension."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pytest
import torch

from glm53_exl3.kernels.exllamav3 import extension as exllamav3_extension
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import FixedWeights, PackedLayer, PackedSource
from glm53_exl3.kernels.native import extension as native_extension
from glm53_exl3.kernels.native.kernel import NativeKernel

MODULE: Final = exllamav3_extension.MODULE
Kernel = ExllamaKernel | NativeKernel


@dataclass(frozen=True)
class KernelBackend:
    """A backend that needs a compiled extension."""

    name: str
    module: str
    of: Callable[[PackedSource, int, int], Kernel]

    def __call__(self, layer: PackedLayer, max_tokens: int, top_k: int) -> Kernel:
        return self.of(FixedWeights(layer), max_tokens, top_k)


BACKENDS: Final = (
    KernelBackend("exllamav3", MODULE, ExllamaKernel),
    KernelBackend("native", native_extension.MODULE, NativeKernel),
)


def is_built(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> KernelBackend:
    chosen: KernelBackend = request.param
    if not is_built(chosen.module):
        pytest.skip(f"needs {chosen.module}: tools/extension/build.py")
    return chosen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and (is_built(MODULE) or is_built(native_extension.MODULE)):
        return
    skip = pytest.mark.skip(reason="needs a GPU and a compiled extension: tools/extension/build.py")
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(skip)
