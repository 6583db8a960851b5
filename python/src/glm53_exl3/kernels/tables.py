"""Addresses of each expert's tensors on the device, as compiled kernels read them."""

from __future__ import annotations

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import PackedLayer, PackedSource


def _tensors(layer: PackedLayer) -> list[torch.Tensor]:
    return [
        tensor for packed in (layer.gate, layer.up, layer.down) for tensor in (packed.trellis, packed.suh, packed.svh)
    ]


class AddressTables:
    """Nine tables int64 `[E]`: trellis, suh and svh of gate, up and down.

    The tables themselves never move, so that a CUDA graph that recorded them reads the addresses of today.

    Args:
        source: the weights, which may be moved.
    """

    def __init__(self, source: PackedSource) -> None:
        self._source = source
        self._addresses = source.addresses()
        # Held: what the tables point to must not be given to somebody else.
        layer = source.packed()
        self._held = _tensors(layer)
        self._name = layer.name
        self.tables = [torch.empty(len(one), dtype=torch.int64, device=one.device) for one in self._held]
        self._write()

    def follow(self) -> bool:
        """Write the addresses again if the weights were moved since; whether they were.

        Raises:
            KernelError: `weights-moved`, while a CUDA graph is captured, which cannot hold the copy, or to another
                device.
        """
        addresses = self._source.addresses()
        if addresses == self._addresses:
            return False
        held = _tensors(self._source.packed())
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing or held[0].device != self.tables[0].device:
            raise KernelError(
                "weights-moved",
                f"{self._name}: packed weights were moved after they were loaded"
                + (", before the capture of a CUDA graph" if capturing else f", to {held[0].device}"),
                expected="weights that stay on their device, and in place once graphs are captured",
                hint="run a batch before capturing, or do not move the weights",
            )
        self._addresses, self._held = addresses, held
        self._write()
        return True

    def _write(self) -> None:
        for table, tensor in zip(self.tables, self._held, strict=True):
            assert tensor.is_contiguous()
            stride = tensor[0].numel() * tensor.element_size() if len(tensor) else 0
            table.copy_(torch.arange(len(tensor), dtype=torch.int64) * stride + tensor.data_ptr())
