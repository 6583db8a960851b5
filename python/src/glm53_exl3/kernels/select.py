"""Which backend runs a layer."""

from __future__ import annotations

import logging

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import KernelSettings

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")

_warned: set[str] = set()


def build_kernel(
    layer: PackedLayer, dtype: torch.dtype, settings: KernelSettings, *, captures_graphs: bool
) -> ReferenceKernel:
    """The kernel of one layer.

    `auto` is `reference`, the one backend there is; on a GPU that is far slower than the hardware allows, so a
    warning says so once.

    Args:
        layer: packed weights.
        dtype: dtype of the products on a GPU; a CPU multiplies in fp32.
        settings: the user's choices.
        captures_graphs: whether the engine will record CUDA graphs.

    Raises:
        KernelError: `reference-graphs`, the reference backend cannot be recorded.
    """
    device = layer.gate.trellis.device
    if device.type == "cpu":
        # A bf16 product on a CPU without bf16 units takes thirty times as long as one in fp32.
        return ReferenceKernel(layer, torch.float32, settings.decode)
    if captures_graphs:
        raise KernelError(
            "reference-graphs",
            f"{layer.name}: the reference backend reads its routing on the host, so no CUDA graph can hold it",
            expected="an eager engine, as long as this release has no CUDA backend",
            hint="start vLLM with --enforce-eager",
        )
    if settings.backend == "auto" and "slow" not in _warned:
        _warned.add("slow")
        logger.warning(
            "EXL3 experts run on %s by the reference backend, which decodes to 16 bits in torch: exact, but far slower "
            "than the GPU could. No faster backend is part of this release.",
            device,
        )
    return ReferenceKernel(layer, dtype, settings.decode)
