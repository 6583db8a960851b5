"""Memory that a launch of exl3_moe works in, shared by all layers of a device."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import torch

from glm53_exl3.kernels.exllamav3.shape import MAX_TOP_K, Shape
from glm53_exl3.kernels.streams import Turns


class Workspace:
    """Scratch tensors of one shape on one device, in the order of the extension's `run_layer`.

    Launches that share it must not overlap: exllamav3 keeps its locks once a device as well. :data:`streams` makes a
    stream wait for the one that launched last. It does not see the replay of a graph: replay on the stream that also
    launches, as vLLM does.
    """

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        rows, hidden = shape.rows, shape.hidden
        sizes: list[tuple[tuple[int, ...], torch.dtype]] = [
            ((rows, hidden), torch.float16),
            ((rows, hidden), torch.float32),
            ((shape.experts + 1,), torch.int64),
            ((rows * MAX_TOP_K,), torch.int64),
            ((rows * MAX_TOP_K,), torch.float16),
            *[((shape.concurrency, rows, hidden), torch.float16)] * 2,
            *[((shape.concurrency, rows, shape.intermediate), torch.float16)] * 2,
        ]
        self.tensors = [torch.empty(size, dtype=dtype, device=device) for size, dtype in sizes]


streams: Final = Turns()
_workspaces: Final[WeakValueDictionary[tuple[Shape, torch.device], Workspace]] = WeakValueDictionary()


def workspace_for(shape: Shape, device: torch.device) -> tuple[Workspace, bool]:
    """The workspace of this shape, and whether it was made now: it lasts as long as a layer has it."""
    key = (shape, device)
    found = _workspaces.get(key)
    if found is not None:
        return found, False
    made = Workspace(shape, device)
    _workspaces[key] = made
    return made, True
