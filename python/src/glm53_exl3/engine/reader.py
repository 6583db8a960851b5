"""Reading of runs into their places by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

import torch

from glm53_exl3.engine.read_plan import Piece, Run
from glm53_exl3.engine.read_targets import Part, byte_view
from glm53_exl3.engine.transfer import Staging, Transfer
from glm53_exl3.pack.damage import DamageError

#: Tensors in a buffer begin at multiples of this many bytes.
_ALIGNMENT: Final = 64
#: What Linux takes in one call.
_MOST_BUFFERS: Final = 1024


def read_exactly(descriptor: int, buffers: list[memoryview], offset: int, name: str) -> None:
    """Fill buffers with the bytes of a file from `offset` on.

    Raises:
        DamageError: `shard-truncated` when the file ends before, `file-unreadable`.
    """
    first = 0
    while first < len(buffers):
        try:
            count = os.preadv(descriptor, buffers[first : first + _MOST_BUFFERS], offset)
        except OSError as error:
            raise DamageError(
                "file-unreadable",
                f"{name} cannot be read: {os.strerror(error.errno or 0)}",
                expected="a file that can be read to its end",
                hint=f"look for errors of the drive with dmesg, and fetch {name} again",
                files=[name],
            ) from error
        if count == 0:
            raise DamageError(
                "shard-truncated",
                f"{name} became shorter while it was read",
                expected=f"more than {offset} bytes",
                hint="leave the pack alone while it loads, and fetch this shard again",
                files=[name],
            )
        offset += count
        while first < len(buffers) and count >= len(buffers[first]):
            count -= len(buffers[first])
            first += 1
        if count:
            buffers[first] = buffers[first][count:]


class Arena:
    """Memory that is handed out from its beginning."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._bytes = byte_view(memory)
        self._used = 0

    def take(self, num_bytes: int) -> tuple[torch.Tensor, memoryview]:
        """The next bytes, as a uint8 tensor and as a buffer to read into."""
        start = self._used
        self._used = -(-(start + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        return self._memory[start : start + num_bytes], self._bytes[start : start + num_bytes]


def arena_bytes(runs: Sequence[Run]) -> int:
    """Size of an arena that holds every piece and every hole of any of the runs."""
    return max((run.num_bytes + 2 * _ALIGNMENT * len(run.pieces) for run in runs), default=0)


class RunReader:
    """Reads one run after another; each thread has its own.

    Args:
        parts: where the pieces belong, by their number.
        runs: all runs there are, for the size of the buffers.
        make_transfer: maker of the way to the device; None when every part is in memory of the host.
    """

    def __init__(
        self, parts: Sequence[Part], runs: Sequence[Run], make_transfer: Callable[[], Transfer] | None = None
    ) -> None:
        self._parts = parts
        num_bytes = arena_bytes(runs)
        self._staging = None if make_transfer is None else Staging(make_transfer(), num_bytes)
        needed = any(run.has_holes for run in runs) or any(part.scattered for part in parts)
        self._scratch = torch.empty(num_bytes if needed else 0, dtype=torch.uint8, device="cpu")

    def read(self, descriptor: int, start_of_data: int, run: Run) -> None:
        """Read one run and bring its pieces to their places; those on a device are there after :meth:`drain`.

        Args:
            descriptor: of the shard.
            start_of_data: where the data begin in it, in bytes.
            run: what to read.

        Raises:
            DamageError: the file cannot be read.
        """
        scratch = Arena(self._scratch)
        staged = scratch if self._staging is None else Arena(self._staging.next_buffer())
        buffers: list[memoryview] = []
        arrived: list[tuple[Piece, torch.Tensor]] = []
        end = run.start
        for piece in run.pieces:
            if piece.offset > end:
                buffers.append(scratch.take(piece.offset - end)[1])
            part = self._parts[piece.part]
            if part.host_bytes is not None:
                start = piece.slot * piece.num_bytes
                buffers.append(part.host_bytes[start : start + piece.num_bytes])
            else:
                memory, writable = (scratch if part.scattered else staged).take(piece.num_bytes)
                buffers.append(writable)
                arrived.append((piece, memory))
            end = piece.stop
        read_exactly(descriptor, buffers, start_of_data + run.start, run.shard.name)
        for piece, memory in arrived:
            self._deliver(self._parts[piece.part], piece.slot, memory, staged)
        if self._staging is not None:
            self._staging.copies_asked()

    def drain(self) -> None:
        """Wait for the copies to the device."""
        if self._staging is not None:
            self._staging.drain()

    def _deliver(self, part: Part, slot: int, memory: torch.Tensor, staged: Arena) -> None:
        target = part.view[slot]
        source = memory.view(target.dtype)
        if part.scattered:
            source = part.cut(source.view(part.stored_shape))
            if self._staging is not None:
                # A device copies what is in one piece; cutting on the host needs no second copy there.
                packed = staged.take(target.numel() * target.element_size())[0].view(target.dtype).view(target.shape)
                source = packed.copy_(source)
        source = source.view(target.shape)
        if self._staging is None:
            target.copy_(source)
        else:
            self._staging.transfer.copy(target, source)
