"""Which bytes of which shard are read together. Pure: paths, offsets and sizes; no file is opened.

A shard holds thousands of tensors one after another, a few bytes of a marker as well as megabytes of a trellis. Read
one by one they cost a call each; in runs of neighbours the number of calls depends on the bytes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from glm53_exl3.errors import PackError
from glm53_exl3.pack.safetensors_header import StoredTensor

#: Bytes of a run, unless a single tensor has more. Larger ones gain little, and staging buffers are this large.
RUN_BYTES: Final = 16 << 20
#: A hole up to this size is read and thrown away, to keep to one call and to a sequence that the kernel reads ahead.
BRIDGE_BYTES: Final = 64 << 10
#: Holes need an entry too, and Linux takes 1024 a call.
MOST_PIECES: Final = 500


class Piece(NamedTuple):
    """The bytes of one stored tensor that go to one place.

    Attributes:
        shard: file that holds them.
        offset: where they begin, in bytes from the first byte of data in the file.
        num_bytes: how many there are.
        part: number of the part (one tensor of all experts of a layer) that they belong to.
        slot: which expert of the part.
    """

    shard: Path
    offset: int
    num_bytes: int
    part: int
    slot: int

    @property
    def stop(self) -> int:
        """Where they end, likewise."""
        return self.offset + self.num_bytes


@dataclass(frozen=True)
class Run:
    """Neighbouring pieces of one shard, in the order of the file."""

    shard: Path
    pieces: Sequence[Piece]

    @property
    def start(self) -> int:
        """Where the run begins, in bytes from the first byte of data in the file."""
        return self.pieces[0].offset

    @property
    def num_bytes(self) -> int:
        """Bytes from the first piece to the end of the last, holes included."""
        return self.pieces[-1].stop - self.start

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the pieces, without the holes between them."""
        return sum(piece.num_bytes for piece in self.pieces)

    @property
    def has_holes(self) -> bool:
        """Whether bytes are read that no piece wants."""
        return self.num_bytes > self.wanted_bytes


class PartLayout(NamedTuple):
    """How the stored tensors of one part look.

    Attributes:
        dtypes: safetensors names of the dtypes they may have.
        shapes: shapes they may have.
        skip_bytes: bytes at their beginning that belong to other ranks.
        read_bytes: bytes to read of each.
    """

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    skip_bytes: int
    read_bytes: int


def pieces_of_part(
    part: int, layout: PartLayout, names: Mapping[int, str], tensors: Mapping[str, StoredTensor]
) -> Iterator[Piece]:
    """Pieces of one part.

    Args:
        part: its number.
        layout: what the tensors have to look like.
        names: tensor name by slot.
        tensors: every tensor of the pack.

    Raises:
        PackError: `tensor-missing`, or `tensor-shape` for one of another dtype or shape.
    """
    for slot, name in names.items():
        stored = tensors.get(name)
        if stored is None:
            raise PackError(
                "tensor-missing",
                f"{name} is not in the pack any more",
                expected="the pack as it was when the engine read its headers",
                hint="fetch the pack again, all files of one commit, and leave it alone while it loads",
            )
        if stored.dtype not in layout.dtypes or stored.shape not in layout.shapes:
            raise PackError(
                "tensor-shape",
                f"{name} does not fit its layer",
                expected=f"{layout.dtypes[0]} {list(layout.shapes[0])}",
                found=f"{stored.dtype} {list(stored.shape)}",
                hint="fetch the shard that holds this tensor again",
            )
        yield Piece(stored.shard, stored.start + layout.skip_bytes, layout.read_bytes, part, slot)


def plan_runs(pieces: Iterable[Piece], run_bytes: int = RUN_BYTES) -> list[Run]:
    """Put pieces together to runs, shard after shard in the order of their names."""
    by_shard: dict[Path, list[Piece]] = {}
    for piece in pieces:
        by_shard.setdefault(piece.shard, []).append(piece)
    return [
        run
        for shard, own in sorted(by_shard.items())
        for run in _runs(shard, sorted(own, key=attrgetter("offset")), run_bytes)
    ]


def _runs(shard: Path, pieces: Iterable[Piece], run_bytes: int) -> Iterator[Run]:
    held: list[Piece] = []
    for piece in pieces:
        if held and (
            piece.offset - held[-1].stop > BRIDGE_BYTES
            or piece.stop - held[0].offset > run_bytes
            or len(held) == MOST_PIECES
        ):
            yield Run(shard, held)
            held = []
        held.append(piece)
    if held:
        yield Run(shard, held)
