"""Addresses of each expert's tensors on the device, as compiled kernels read them."""

from __future__ import annotations

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import PackedLayer, PackedSource

#: A tensor of each expert: stacked, or each by itself.
_Stack = torch.Tensor | tuple[torch.Tensor, ...]


def _stacks(layer: PackedLayer) -> list[_Stack]:
    return [
        stack for packed in (layer.gate, layer.up, layer.down) for stack in (packed.trellis, packed.suh, packed.svh)
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
        self._held = _stacks(layer)
        self._name = layer.name
        device = layer.gate.device
        self.tables = [torch.empty(len(one), dtype=torch.int64, device=device) for one in self._held]
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
        layer = self._source.packed()
        held, device = _stacks(layer), layer.gate.device
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing or device != self.tables[0].device:
            raise KernelError(
                "weights-moved",
                f"{self._name}: packed weights were moved after they were loaded"
                + (", before the capture of a CUDA graph" if capturing else f", to {device}"),
                expected="weights that stay on their device, and in place once graphs are captured",
                hint="run a batch before capturing, or do not move the weights",
            )
        self._addresses, self._held = addresses, held
        self._write()
        return True

    def _write(self) -> None:
        for table, stack in zip(self.tables, self._held, strict=True):
            table.copy_(_addresses(stack))


def _addresses(stack: _Stack) -> torch.Tensor:
    if isinstance(stack, tuple):
        assert all(one.is_contiguous() for one in stack)
        return torch.tensor([one.data_ptr() for one in stack], dtype=torch.int64)
    assert stack.is_contiguous()
    stride = stack[0].numel() * stack.element_size() if len(stack) else 0
    return torch.arange(len(stack), dtype=torch.int64) * stride + stack.data_ptr()
