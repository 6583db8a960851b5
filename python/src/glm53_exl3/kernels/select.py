"""Which backend runs a layer."""

from __future__ import annotations

import logging

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.automatic import Build, build_automatic
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import MoEKernel, PackedSource
from glm53_exl3.kernels.native.kernel import NativeKernel
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import KERNEL_VARIABLE, KernelSettings

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")

_warned: set[str] = set()


def build_kernel(
    source: PackedSource,
    dtype: torch.dtype,
    settings: KernelSettings,
    *,
    captures_graphs: bool,
    max_tokens: int,
    top_k: int,
) -> MoEKernel:
    """The kernel of one layer.

    `auto` is `reference` on a CPU. On a GPU it tries the compiled backends on the first layer of each kind and takes
    the fastest right one for each range of batch sizes. Where none can run a layer, it takes the reference and says
    so once with the reason; an engine that captures CUDA graphs cannot, and is refused.

    Args:
        source: packed weights.
        dtype: dtype of the products of the reference on a GPU; a CPU multiplies in fp32.
        settings: the user's choices.
        captures_graphs: whether the engine will record CUDA graphs.
        max_tokens: largest batch the engine will run.
        top_k: experts a token.

    Raises:
        KernelError: `reference-graphs`, the reference backend cannot be recorded; `backend-device`, a compiled backend
            on a CPU; those of :class:`NativeKernel` and :class:`ExllamaKernel`, when one was asked for by name or when
            graphs leave no other; `kernels-wrong`, no compiled backend is right.
    """
    layer = source.packed()
    device = layer.gate.device
    builds: dict[str, Build] = {
        "native": lambda: NativeKernel(source, max_tokens, top_k),
        "exllamav3": lambda: ExllamaKernel(source, max_tokens, top_k),
    }
    if device.type == "cpu":
        if settings.backend in builds:
            raise KernelError(
                "backend-device",
                f"{layer.name}: the {settings.backend} backend runs on a GPU, and the weights are on {device}",
                expected="a CUDA device",
                hint=f"unset {KERNEL_VARIABLE}",
            )
        # A bf16 product on a CPU without bf16 units takes thirty times as long as one in fp32.
        return ReferenceKernel(layer, torch.float32, settings.decode)
    if settings.backend in builds:
        return builds[settings.backend]()
    if settings.backend == "auto":
        try:
            return build_automatic(layer, builds, top_k, max_tokens)
        except KernelError as error:
            if captures_graphs:
                raise
            _warn_once(device, str(error))
    if captures_graphs:
        raise KernelError(
            "reference-graphs",
            f"{layer.name}: the reference backend reads its routing on the host, so no CUDA graph can hold it",
            expected="an eager engine, or another backend",
            hint=f"unset {KERNEL_VARIABLE}, or start vLLM with --enforce-eager",
        )
    return ReferenceKernel(layer, dtype, settings.decode)


def _warn_once(device: torch.device, reason: str) -> None:
    if reason not in _warned:
        _warned.add(reason)
        logger.warning(
            "EXL3 experts run on %s by the reference backend, which decodes to 16 bits in torch: exact, but far slower "
            "than the GPU could. %s",
            device,
            reason,
        )
