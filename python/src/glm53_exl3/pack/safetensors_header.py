"""Headers of safetensors files: names, dtypes, shapes and byte ranges, without the data.

The layout is that of the safetensors format: eight bytes of little-endian header length, a JSON header, then the
data. Only the header is read, so a 91 GiB pack is known in about a second.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import PackError

#: Bytes of an element by safetensors dtype name.
DTYPE_BYTES: Final[dict[str, float]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F4": 0.5,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_LENGTH_BYTES: Final = 8
#: The safetensors library refuses longer headers.
_MAX_HEADER_BYTES: Final = 100_000_000

_REFETCH: Final = "fetch this shard again; its download did not finish or its bytes changed"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of one shard.

    Attributes:
        name: name in the checkpoint.
        dtype: safetensors dtype name, for example `I16`.
        shape: dimensions; empty for a scalar.
        shard: file that holds it.
        num_bytes: size of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: Path
    num_bytes: int


def read_header(path: Path) -> list[StoredTensor]:
    """Tensors of one safetensors file, in the order of its header.

    Raises:
        PackError: `shard-truncated` when the file is shorter than its header says, `shard-oversized` when it is
            longer, `shard-header` when it is no safetensors file or a tensor's bytes and shape disagree.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise _truncated(path, _LENGTH_BYTES, file_bytes)
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > _MAX_HEADER_BYTES:
            raise _bad_header(path, f"a header of {header_bytes} bytes")
        raw = file.read(header_bytes)
    if len(raw) < header_bytes:
        raise _truncated(path, _LENGTH_BYTES + header_bytes, file_bytes)
    try:
        header = json.loads(raw, object_pairs_hook=lambda pairs: _refuse_twice(path, pairs))
    # Both decode errors are ValueErrors, as is a number of too many digits.
    except (ValueError, RecursionError) as error:
        raise _bad_header(path, f"no JSON: {error}") from error
    if not isinstance(header, dict):
        raise _bad_header(path, "JSON that is no object")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    try:
        tensors = [_stored(path, name, entry) for name, entry in entries.items()]
        end = _end_of_data(path, [entry["data_offsets"] for entry in entries.values()])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _bad_header(path, f"an entry that cannot be read ({error!r})") from error
    expected_bytes = _LENGTH_BYTES + header_bytes + end
    if file_bytes < expected_bytes:
        raise _truncated(path, expected_bytes, file_bytes)
    if file_bytes > expected_bytes:
        raise PackError(
            "shard-oversized",
            f"{path.name} is longer than its header says",
            expected=f"{expected_bytes} bytes",
            found=f"{file_bytes} bytes",
            hint=_REFETCH,
        )
    return tensors


def _stored(path: Path, name: str, entry: dict[str, Any]) -> StoredTensor:
    shape = tuple(entry["shape"])
    start, end = entry["data_offsets"]
    dtype = entry["dtype"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, end)):
        raise _bad_header(path, f"{name}: shape {list(shape)}, offsets {[start, end]}")
    expected = math.prod(shape) * DTYPE_BYTES[dtype] if dtype in DTYPE_BYTES else end - start
    if end - start != expected:
        raise _bad_header(path, f"{name}: {end - start} bytes for {dtype} {list(shape)}")
    return StoredTensor(name, dtype, shape, path, end - start)


def _end_of_data(path: Path, offsets: list[list[int]]) -> int:
    """Where the data ends. The format allows neither holes nor two tensors in one place."""
    end = 0
    for start, stop in sorted(map(tuple, offsets)):
        if start != end:
            raise _bad_header(path, f"data from byte {start} where byte {end} is next")
        end = stop
    return end


def _refuse_twice(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise PackError(
            "tensor-doubled",
            f"{twice} stands twice in the header of {path.name}",
            hint=_REFETCH,
        )
    return result


def _truncated(path: Path, expected_bytes: int, file_bytes: int) -> PackError:
    return PackError(
        "shard-truncated",
        f"{path.name} is shorter than its header says",
        expected=f"{expected_bytes} bytes",
        found=f"{file_bytes} bytes",
        hint=_REFETCH,
    )


def _bad_header(path: Path, found: str) -> PackError:
    return PackError(
        "shard-header",
        f"{path.name} has no readable safetensors header",
        found=found,
        hint=_REFETCH,
    )
