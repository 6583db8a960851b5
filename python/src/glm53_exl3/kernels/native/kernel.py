"""Routed experts of one layer by the native kernels."""

from __future__ import annotations

import logging
from typing import Final
from weakref import WeakValueDictionary

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.interface import PackedLayer, PackedSource
from glm53_exl3.kernels.native.extension import load_extension
from glm53_exl3.kernels.native.scratch import DECODE_CHOICES, DECODE_ROWS, Scratch, scratch_for
from glm53_exl3.kernels.streams import Turns
from glm53_exl3.kernels.tables import AddressTables

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")

#: As trellis.cuh numbers them.
_CODEBOOKS: Final[dict[Codebook, int]] = {"mcg": 0, "mul1": 1, "3inst": 2}
_MIXED: Final = 0


class _Memory:
    """Scratch of one shape on one device, shared by its layers: zeroed once, and its counters are 0 between calls."""

    def __init__(self, scratch: Scratch, device: torch.device) -> None:
        self.scratch = scratch
        self.tensor = torch.zeros(scratch.num_bytes, dtype=torch.uint8, device=device)


_turns: Final = Turns()
_memories: Final[WeakValueDictionary[tuple[Scratch, torch.device], _Memory]] = WeakValueDictionary()


class NativeKernel:
    """Routed experts by `python/csrc/native`.

    Nothing is read back from the device: a call can be captured in a CUDA graph. Sums are in a fixed order, so that the
    same call gives the same bits.

    Args:
        source: packed weights on a GPU.
        max_tokens: largest batch that the engine will run; a larger one only takes more pieces.
        top_k: experts a token.

    Raises:
        KernelError: `extension-missing`, `extension-other`; `native-codebook`, for projections of different codebooks.
    """

    def __init__(self, source: PackedSource, max_tokens: int, top_k: int) -> None:
        layer = source.packed()
        self._codebook = _CODEBOOKS[codebook_of(layer)]
        self._extension = load_extension()
        self._device = layer.gate.device
        require_arch(self._extension, torch.cuda.get_device_capability(self._device))
        self._tables = AddressTables(source)
        projections = (layer.gate, layer.up, layer.down)
        rates = {packed.bits for packed in projections}
        self._rate = rates.pop() if len(rates) == 1 else _MIXED
        experts = layer.gate.num_experts
        self._rates = [torch.tensor(one.rates, dtype=torch.uint8, device=self._device) for one in projections]
        self._limit = layer.limit
        hidden, self._intermediate = layer.gate.suh.shape[1], layer.gate.svh.shape[1]
        self._memory = self._share(scratch_for(hidden, self._intermediate, experts, top_k, max_tokens))
        self._warm(hidden, top_k, experts)

    @property
    def backend(self) -> str:
        """Name of the backend, for logs."""
        return "native"

    @property
    def keeps_packed_weights(self) -> bool:
        """Always: the kernels read them."""
        return True

    @property
    def rows(self) -> int:
        """Tokens of one piece of a batch."""
        return self._memory.scratch.tokens

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """See :class:`glm53_exl3.kernels.interface.MoEKernel`."""
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        scratch, top_k = self._memory.scratch, topk_ids.shape[1]
        self._tables.follow()
        _turns.enter(self._device)
        arguments = (
            x.contiguous(),
            topk_ids.contiguous(),
            topk_weights.to(torch.float32).contiguous(),
            output,
            self._memory.tensor,
            # With more experts a token fewer tokens, so that there are no more rows.
            scratch.tokens if top_k <= scratch.top_k else max(1, scratch.choices // top_k),
            self._tables.tables,
            self._rates,
            self._rate,
            self._codebook,
            self._intermediate,
            self._limit,
        )
        try:
            self._extension.run_layer(*arguments)
        except RuntimeError:
            # A call that ends half way leaves its counters behind, and the next one would wait for ever.
            self._memory.tensor.zero_()
            raise
        return output

    def _warm(self, hidden: int, top_k: int, experts: int) -> None:
        """Every kernel once, outside any capture: CUDA loads code when it is first called."""
        few = max(1, min(DECODE_CHOICES, DECODE_ROWS * experts) // top_k)
        for tokens in (1, few, few + 1):
            x = torch.zeros(tokens, hidden, dtype=torch.bfloat16, device=self._device)
            nobody = torch.full((tokens, top_k), -1, dtype=torch.int32, device=self._device)
            self(x, nobody, torch.zeros(tokens, top_k, device=self._device))
        torch.cuda.synchronize(self._device)

    def _share(self, scratch: Scratch) -> _Memory:
        key = (scratch, self._device)
        found = _memories.get(key)
        if found is None:
            found = _memories[key] = _Memory(scratch, self._device)
            logger.info(
                "native kernels %s for sm %s on %s: at most %d tokens at once, %.0f MiB of scratch",
                self._extension.version,
                self._extension.arch_list,
                self._device,
                scratch.tokens,
                scratch.num_bytes / 2**20,
            )
        return found


def codebook_of(layer: PackedLayer) -> Codebook:
    """The codebook of a layer.

    Raises:
        KernelError: `native-codebook`.
    """
    codebooks = {packed.codebook for packed in (layer.gate, layer.up, layer.down)}
    if len(codebooks) > 1:
        raise KernelError(
            "native-codebook",
            f"{layer.name} has the codebooks {' and '.join(sorted(codebooks))}",
            expected="one codebook for gate, up and down",
            hint="GLM53_EXL3_KERNEL=reference and GLM53_EXL3_DECODE=call with --enforce-eager, exact and slow",
        )
    return codebooks.pop()
