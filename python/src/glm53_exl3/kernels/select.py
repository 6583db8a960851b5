"""Which backend runs a layer."""

from __future__ import annotations

import logging

import torch

from glm53_exl3.kernels.interface import PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import KernelSettings

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")

_warned: set[str] = set()


def build_kernel(layer: PackedLayer, dtype: torch.dtype, settings: KernelSettings) -> ReferenceKernel:
    """The kernel of one layer.

    Args:
        layer: packed weights.
        dtype: dtype of the products on a GPU; a CPU multiplies in fp32.
        settings: the user's choices.

    `auto` is `reference`, the one backend there is; on a GPU that is far slower than the hardware allows, so a
    warning says so once.
    """
    device = layer.gate.trellis.device
    if device.type != "cpu" and settings.backend == "auto" and "slow" not in _warned:
        _warned.add("slow")
        logger.warning(
            "EXL3 experts run on %s by the reference backend, which decodes to 16 bits in torch: right, but slow and "
            "not fit for CUDA graphs. No faster backend is part of this release.",
            device,
        )
    # A bf16 product on a CPU without bf16 units takes thirty times as long as one in fp32.
    return ReferenceKernel(layer, torch.float32 if device.type == "cpu" else dtype, settings.decode)
