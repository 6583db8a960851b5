"""What a CPU without torchvision lacks to build vLLM's Glm5Next, replaced in this process.

Nothing here touches a weight: registry, configs, layers, fused experts and every `load_weights` are vLLM's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


class _NoSparseAttention(torch.nn.Module):
    """In place of `MultiHeadLatentAttentionWrapper`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def install() -> None:
    """Install every stub; to be called before a Glm5Next model is looked up."""
    # Imported first: transformers then finds no torchvision, and asks nothing of the stub but to be importable.
    from vllm.model_executor.models import registry

    _stub_torchvision()
    # vLLM imports a model class in a process of its own to learn its interfaces. That process has no stubs, and
    # importing vLLM once more takes as long as the rest of this test.
    registry._run_in_subprocess = _run_here

    from vllm.models.glm5next.common import attention

    # The wrapper asks the platform for a sparse attention backend, and the CPU has none. It only computes: the
    # projections, norms and the indexer it is given are modules of the layer outside, which stay.
    attention.MultiHeadLatentAttentionWrapper = _NoSparseAttention


def _run_here(inspect: Callable[[], Any]) -> Any:
    return inspect()


def _stub_torchvision() -> None:
    """The processors of Glm4v import this module at their top and use it only on images."""
    name = ""
    for part in ("torchvision", "transforms", "v2", "functional"):
        parent, name = name, f"{name}.{part}".removeprefix(".")
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        if parent:
            setattr(sys.modules[parent], part, module)
