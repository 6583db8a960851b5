"""From memory of the host to a device, while the next bytes are being read.

A copy from pinned memory goes on by itself once it is asked for. A buffer may be written again only when the copies
out of it are done, which an event says that is recorded after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

#: Buffers of one reader: one is read into while the other is copied.
BUFFERS_A_READER: Final = 2


class Event(Protocol):
    """A point in the order of the copies."""

    def synchronize(self) -> None:
        """Wait until every copy before it is done."""
        ...


class Transfer(Protocol):
    """The way to one device; one reader uses it, from one thread."""

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """A new buffer of the host, uint8 `[num_bytes]`."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Ask for a copy from a buffer, of two contiguous tensors of one shape and dtype."""
        ...

    def record(self) -> Event:
        """An event after all copies that were asked for so far."""
        ...


class CudaTransfer:
    """Copies to a CUDA device on a stream of their own.

    Args:
        device: a CUDA device.
        ready: event on the stream that allocated the targets.
    """

    def __init__(self, device: torch.device, ready: torch.cuda.Event) -> None:
        # Of this thread: pinned memory belongs to the current device's context, and a new thread starts at device 0.
        torch.cuda.set_device(device)
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(ready)

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """Pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See :class:`Transfer`."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        """See :class:`Transfer`."""
        event: Event = self._stream.record_event()
        return event


def cuda_transfers(device: torch.device) -> Callable[[], Transfer]:
    """Maker of transfers to a device whose parameters were allocated by the current stream."""
    ready = torch.cuda.current_stream(device).record_event()
    return lambda: CudaTransfer(device, ready)


class Staging:
    """The buffers of one reader, used in turns.

    Args:
        transfer: the way to the device.
        buffer_bytes: size of each buffer.
    """

    def __init__(self, transfer: Transfer, buffer_bytes: int) -> None:
        self.transfer = transfer
        self._buffers = [transfer.buffer(buffer_bytes) for _ in range(BUFFERS_A_READER)]
        self._events: list[Event | None] = [None] * BUFFERS_A_READER
        self._turn = 0

    def next_buffer(self) -> torch.Tensor:
        """A buffer that no copy reads any more."""
        self._turn = (self._turn + 1) % BUFFERS_A_READER
        event = self._events[self._turn]
        if event is not None:
            event.synchronize()
            self._events[self._turn] = None
        return self._buffers[self._turn]

    def copies_asked(self) -> None:
        """Note that all copies out of the last buffer were asked for."""
        self._events[self._turn] = self.transfer.record()

    def drain(self) -> None:
        """Wait for all copies."""
        for event in self._events:
            if event is not None:
                event.synchronize()
