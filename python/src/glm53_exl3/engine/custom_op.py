"""The forward of a layer as one torch operator.

torch.compile and CUDA graphs cannot look into a kernel backend. As an operator with a fake implementation it is
one opaque node to them: the fake gives the shape of the result, the real one finds its kernel by layer name.
"""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import torch
from torch import library
from vllm.utils.torch_utils import direct_register_custom_op

from glm53_exl3.kernels.interface import MoEKernel

NAMESPACE: Final = "glm53_exl3"

# An operator lives as long as its library object.
_library: Final = library.Library(NAMESPACE, "FRAGMENT")
_holders: Final[WeakValueDictionary[str, KernelHolder]] = WeakValueDictionary()


class KernelHolder:
    """Owner of a layer's kernel; the operator finds it as long as the layer lives.

    Args:
        layer_name: vLLM's name of the layer.

    Attributes:
        key: the layer name, made unique: two models in one process may have layers of one name.
        kernel: set after loading.
    """

    def __init__(self, layer_name: str) -> None:
        self.kernel: MoEKernel | None = None
        self.key = layer_name
        copies = 1
        while self.key in _holders:
            copies += 1
            self.key = f"{layer_name}#{copies}"
        _holders[self.key] = self


def moe_forward(x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer_key: str) -> torch.Tensor:
    """Run the experts of the layer registered under `layer_key`; see `MoEKernel` for the arguments."""
    kernel = _holders[layer_key].kernel
    assert kernel is not None, f"{layer_key}: forward before process_weights_after_loading"
    return kernel(x, topk_ids, topk_weights)


def _moe_forward_fake(
    x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor, layer_key: str
) -> torch.Tensor:
    return torch.empty_like(x)


direct_register_custom_op(op_name="moe_forward", op_func=moe_forward, fake_impl=_moe_forward_fake, target_lib=_library)
