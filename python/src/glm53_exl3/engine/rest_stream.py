"""The tensors that are not loaded in bulk, one after another, as vLLM's models take them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open

from glm53_exl3.pack.files import open_file
from glm53_exl3.pack.safetensors_header import StoredTensor, start_of_data

#: How far the kernel reads ahead of the model. The tensors are mapped, and a page that is not there yet is fetched by
#: whoever touches it, with little beside it.
AHEAD_BYTES: Final = 256 << 20


class RestStream:
    """Names and tensors, shard after shard, in the order of the files.

    Args:
        tensors: what to stream.
        is_used: whether the model is going to read a tensor of this name. Only such tensors are read ahead and
            counted; the others are mapped, which reads nothing.
        count: takes the number of bytes of each tensor that the model has taken.
        drop: whether a shard leaves the page cache once it was streamed.
    """

    def __init__(
        self,
        tensors: Iterable[StoredTensor],
        is_used: Callable[[str], bool],
        count: Callable[[int], object],
        drop: bool = False,
    ) -> None:
        self._tensors = sorted(tensors, key=attrgetter("shard", "start"))
        self._used = {tensor.name for tensor in self._tensors if is_used(tensor.name)}
        self._count = count
        self._drop = drop

    @property
    def used_bytes(self) -> int:
        """Bytes of the tensors that the model is going to read."""
        return sum(tensor.num_bytes for tensor in self._tensors if tensor.name in self._used)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for shard, tensors in groupby(self._tensors, attrgetter("shard")):
            descriptor, _ = open_file(shard)
            try:
                yield from self._stream(shard, descriptor, list(tensors))
                if self._drop:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def _stream(self, shard: Path, descriptor: int, tensors: list[StoredTensor]) -> Iterator[tuple[str, torch.Tensor]]:
        waiting = deque(tensor for tensor in tensors if tensor.name in self._used)
        ahead_bytes = 0
        base = start_of_data(descriptor)
        with safe_open(shard, framework="pt") as file:
            for stored in tensors:
                while waiting and ahead_bytes < AHEAD_BYTES:
                    announced = waiting.popleft()
                    os.posix_fadvise(descriptor, base + announced.start, announced.num_bytes, os.POSIX_FADV_WILLNEED)
                    ahead_bytes += announced.num_bytes
                yield stored.name, file.get_tensor(stored.name)
                if stored.name in self._used:
                    ahead_bytes -= stored.num_bytes
                    self._count(stored.num_bytes)
