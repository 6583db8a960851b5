"""Where the bytes of a layer's experts go: memory of its parameters, host copies, or a device by way of a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from glm53_exl3.engine.loader import ExpertLoader, local_shard
from glm53_exl3.engine.read_plan import PartLayout, Piece, pieces_of_part
from glm53_exl3.format.codebooks import MARKER_VALUES
from glm53_exl3.format.names import Projection
from glm53_exl3.format.tensors import SUH, TRELLIS, trellis_shape
from glm53_exl3.pack.safetensors_header import StoredTensor

#: Dtypes in a header of each dtype of a parameter. The two integers of a marker have the same bits.
_STORED_DTYPES = {torch.int16: ("I16",), torch.float16: ("F16",), torch.int32: ("I32", "U32")}


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host, writable."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


@dataclass(frozen=True)
class Part:
    """One tensor of every local expert of a layer.

    Attributes:
        loader: of the layer.
        projection, suffix: which tensor.
        on_device: whether the parameter is not in memory of the host.
    """

    loader: ExpertLoader
    projection: Projection
    suffix: str
    on_device: bool

    @property
    def view(self) -> torch.Tensor:
        """The parameter's memory, `[E, ...]`."""
        view = self.loader.views[self.projection, self.suffix]
        assert isinstance(view, torch.Tensor), "layers whose experts differ in bits are not loaded in bulk"
        return view

    @cached_property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one tensor in the pack, before any cut."""
        spec = self.loader.layer.projections[self.projection]
        if self.suffix in MARKER_VALUES:
            return ()
        if self.suffix == TRELLIS:
            return trellis_shape(spec.in_features, spec.out_features, spec.bits)
        return (spec.in_features if self.suffix == SUH else spec.out_features,)

    def cut(self, stored: torch.Tensor) -> torch.Tensor:
        """This rank's part of a stored tensor."""
        return local_shard(stored, self.projection, self.suffix, self.loader.sizes.channels)

    @cached_property
    def scattered(self) -> bool:
        """Whether this rank's part of a stored tensor is spread over all of it, so that the whole has to be read."""
        return not self._pattern.is_contiguous()

    @cached_property
    def layout(self) -> PartLayout:
        """What to expect of the stored tensors, and which bytes to read."""
        shape, size = self.stored_shape, self.view.element_size()
        whole = torch.Size(shape).numel() * size
        skip = 0 if self.scattered else int(self._pattern.storage_offset()) * size
        read = whole if self.scattered else self._pattern.numel() * size
        return PartLayout(_STORED_DTYPES[self.view.dtype], (shape, (1,)) if shape == () else (shape,), skip, read)

    @cached_property
    def host(self) -> torch.Tensor | None:
        """Memory of the host that bytes are read into as they are, `[E, ...]`, or None.

        The parameter itself on a CPU. On a device the scales and markers, which are small and many, gather in a copy
        on the host, are checked there and go to the device in one piece; the trellises do not. Asked for first under
        a lock: newer Pythons may make a cached property twice.
        """
        if self.scattered:
            return None
        if not self.on_device:
            return self.view
        return None if self.suffix == TRELLIS else torch.empty_like(self.view, device="cpu")

    @cached_property
    def host_bytes(self) -> memoryview | None:
        """The bytes of `host`."""
        return None if self.host is None else byte_view(self.host)

    def names(self) -> Mapping[int, str]:
        """Names in the pack by local expert."""
        return self.loader.names(self.projection, self.suffix)

    def finish(self) -> None:
        """Check and count the part, all of whose bytes have arrived.

        Raises:
            PackError: a value is none that may be there.
        """
        values = self.view if self.host is None else self.host
        self.loader.accept(self.projection, self.suffix, values)
        if self.host is not None and self.on_device:
            self.view.copy_(self.host)
            # Frees the copy.
            del self.__dict__["host"], self.__dict__["host_bytes"]

    @cached_property
    def _pattern(self) -> torch.Tensor:
        # Where the cut of a whole tensor begins, and whether it is in one piece, without memory.
        return self.cut(torch.empty(self.stored_shape, dtype=self.view.dtype, device="meta"))


def parts_of_layer(loader: ExpertLoader) -> list[Part]:
    """The parts of one layer."""
    return [
        Part(loader, projection, suffix, view.device.type != "cpu")
        for (projection, suffix), view in loader.views.items()
        if isinstance(view, torch.Tensor)
    ]


def iter_pieces(parts: list[Part], tensors: Mapping[str, StoredTensor]) -> Iterator[Piece]:
    """Pieces of all parts, numbered as in the list.

    Raises:
        PackError: a tensor is missing or of another dtype or shape than its part.
    """
    for number, part in enumerate(parts):
        yield from pieces_of_part(number, part.layout, part.names(), tensors)
