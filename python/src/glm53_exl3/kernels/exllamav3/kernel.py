"""Routed experts of one layer by exllamav3's kernels."""

from __future__ import annotations

import logging

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.extension import load_extension
from glm53_exl3.kernels.exllamav3.shape import MAX_TOP_K, shape_for
from glm53_exl3.kernels.exllamav3.workspace import streams, workspace_for
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.interface import PackedLayer, PackedSource
from glm53_exl3.kernels.tables import AddressTables

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")


class ExllamaKernel:
    """Routed experts by exllamav3's `exl3_moe`.

    A batch is run in pieces of at most as many tokens as an expert has scratch rows, so that no row is dropped whatever
    the routing. Nothing is read back from the device: a call can be captured in a CUDA graph. Sums over experts are
    atomic, so that results differ by rounding from run to run.

    Args:
        source: packed weights on a GPU.
        max_tokens: largest batch that the engine will run; a larger one only takes more pieces.
        top_k: experts a token.

    Raises:
        KernelError: `extension-missing`, `extension-other`; `exllamav3-codebook`, `exllamav3-bits` and
            `exllamav3-top-k` for what exl3_moe has no kernels for.
    """

    def __init__(self, source: PackedSource, max_tokens: int, top_k: int) -> None:
        layer = source.packed()
        require_codebook(layer)
        _require_top_k(top_k)
        _require_one_rate(layer)
        self._extension = load_extension()
        self._device = layer.gate.device
        require_arch(self._extension, torch.cuda.get_device_capability(self._device))
        self._tables = AddressTables(source)
        self._bits = [packed.bits for packed in (layer.gate, layer.up, layer.down)]
        self._mcg = layer.gate.codebook == "mcg"
        self._limit = layer.limit
        concurrency = int(self._extension.exl3_moe_max_concurrency(self._device.index or 0))
        hidden, intermediate = layer.gate.suh.shape[1], layer.gate.svh.shape[1]
        shape = shape_for(hidden, intermediate, layer.gate.num_experts, max(1, concurrency), max_tokens)
        self._workspace, fresh = workspace_for(shape, self._device)
        if fresh:
            logger.info(
                "exllamav3 kernels %s for sm %s on %s: at most %d tokens a launch, %d of %d experts at once, "
                "%.0f MiB of scratch",
                self._extension.source_revision,
                self._extension.arch_list,
                self._device,
                shape.rows,
                min(shape.concurrency, shape.experts),
                shape.experts,
                shape.num_bytes / 2**20,
            )
        self._warm(hidden)

    @property
    def backend(self) -> str:
        """Name of the backend, for logs."""
        return "exllamav3"

    @property
    def keeps_packed_weights(self) -> bool:
        """Always: the kernel reads them."""
        return True

    @property
    def rows(self) -> int:
        """Tokens of one launch."""
        return self._workspace.shape.rows

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """See :class:`glm53_exl3.kernels.interface.MoEKernel`; at most 32 choices a token."""
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        _require_top_k(topk_ids.shape[1])
        self._tables.follow()
        streams.enter(self._device)
        self._extension.run_layer(
            x.contiguous(),
            topk_ids.contiguous(),
            topk_weights.to(torch.float32).contiguous(),
            output,
            self._workspace.tensors,
            self._tables.tables,
            self._bits,
            self._mcg,
            self._limit,
        )
        return output

    def _warm(self, hidden: int) -> None:
        """Once, outside any capture: exllamav3 allocates its locks when first called on a device."""
        x = torch.zeros(1, hidden, dtype=torch.bfloat16, device=self._device)
        nobody = torch.full((1, 1), -1, dtype=torch.int32, device=self._device)
        self(x, nobody, torch.zeros(1, 1, device=self._device))
        torch.cuda.synchronize(self._device)


def _require_top_k(top_k: int) -> None:
    if top_k > MAX_TOP_K:
        raise KernelError(
            "exllamav3-top-k",
            f"{top_k} experts a token",
            expected=f"at most {MAX_TOP_K}",
            hint="open an issue that names the model",
        )


def _require_one_rate(layer: PackedLayer) -> None:
    for name, packed in (("gate", layer.gate), ("up", layer.up), ("down", layer.down)):
        if len(set(packed.rates)) > 1:
            raise KernelError(
                "exllamav3-bits",
                f"{layer.name}: experts have {packed.rate_text} bits for {name}",
                expected="one bit rate for all experts: exl3_moe takes no more",
                hint="GLM53_EXL3_KERNEL=native, or auto with the native kernels built (docs/extension.md)",
            )


def require_codebook(layer: PackedLayer) -> None:
    """Refuse a codebook that exl3_moe has no kernels for.

    Raises:
        KernelError: `exllamav3-codebook`.
    """
    codebooks = {packed.codebook for packed in (layer.gate, layer.up, layer.down)}
    if len(codebooks) > 1 or codebooks == {"3inst"}:
        raise KernelError(
            "exllamav3-codebook",
            f"{layer.name} has the codebook {' and '.join(sorted(codebooks))}",
            expected="mcg or mul1, one for gate, up and down: exllamav3 has no other MoE kernels",
            hint="GLM53_EXL3_KERNEL=reference and GLM53_EXL3_DECODE=call with --enforce-eager, exact and slow",
        )
