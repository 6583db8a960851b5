"""Headers of safetensors files: names, dtypes, shapes and byte ranges, without the data.

The layout is that of the safetensors format: eight bytes of little-endian header length, a JSON header, then the
data. Only the header is read, and only after its stated length was compared with the size of the file, so memory
stays in proportion to what is on disk. The 20 MB of headers of a 91 GiB pack take less than half a second.
"""

from __future__ import annotations

import math
import os
from itertools import repeat
from operator import sub
from pathlib import Path
from typing import Final, NamedTuple

from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.files import open_file, read_bytes
from glm53_exl3.pack.header_text import DoubledNameError, TensorColumns, parse_header

#: Bits of an element by safetensors dtype name.
DTYPE_BITS: Final[dict[str, int]] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_LENGTH_BYTES: Final = 8
#: How a pointer of Git LFS begins; as a length it is beyond any file.
_POINTER: Final = b"version "
#: The safetensors library refuses longer headers.
_MAX_HEADER_BYTES: Final = 100_000_000

_REFETCH: Final = "fetch this shard again; its download did not finish or its bytes changed"


class StoredTensor(NamedTuple):
    """One tensor of one shard.

    Attributes:
        name: name in the checkpoint.
        dtype: safetensors dtype name, for example `I16`.
        shape: dimensions; empty for a scalar.
        shard: file that holds it.
        num_bytes: size of its data.
        start: where its data begin, in bytes from the first byte of data in the file; see :func:`start_of_data`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: Path
    num_bytes: int
    start: int


def read_header(path: Path) -> list[StoredTensor]:
    """Tensors of one safetensors file, in the order of its header. Their data lie within the file.

    Raises:
        PackError: `shard-truncated` when the file is shorter than its header says, `shard-oversized` when it is
            longer, `tensor-doubled` when a name stands twice, `shard-pointer` when Git LFS left a pointer,
            `shard-header` when it is no safetensors file or a tensor's bytes and shape disagree, `file-missing` or
            `file-unreadable`.
    """
    descriptor, file_bytes = open_file(path)
    try:
        prefix = read_bytes(descriptor, _LENGTH_BYTES, path)
        if prefix == _POINTER:
            raise _pointer(path)
        header_bytes = int.from_bytes(prefix, "little")
        if file_bytes >= _LENGTH_BYTES and header_bytes > _MAX_HEADER_BYTES:
            raise _bad_header(path, f"a header of {header_bytes} bytes")
        if file_bytes < _LENGTH_BYTES + header_bytes:
            raise _truncated(path, _LENGTH_BYTES + header_bytes, file_bytes)
        raw = read_bytes(descriptor, header_bytes, path)
    finally:
        os.close(descriptor)
    if len(raw) < header_bytes:
        raise _truncated(path, _LENGTH_BYTES + header_bytes, file_bytes)
    columns = _parse(path, raw)
    sizes = _sizes(path, columns)
    end = _LENGTH_BYTES + header_bytes + _end_of_data(path, columns, sizes)
    if file_bytes < end:
        raise _truncated(path, end, file_bytes)
    if file_bytes > end:
        raise DamageError(
            "shard-oversized",
            f"{path.name} is longer than its header says",
            expected=f"{end} bytes",
            found=f"{file_bytes} bytes",
            hint=_REFETCH,
            files=[path.name],
        )
    rows = zip(columns.names, columns.dtypes, columns.shapes, repeat(path), sizes, columns.starts)
    return list(map(StoredTensor._make, rows))


def start_of_data(descriptor: int) -> int:
    """Where the data of an open safetensors file begin, in bytes.

    Raises:
        OSError: the file cannot be read.
    """
    return _LENGTH_BYTES + int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")


def _parse(path: Path, raw: bytes) -> TensorColumns:
    try:
        return parse_header(raw)
    except DoubledNameError as error:
        raise DamageError(
            "tensor-doubled",
            f"{_short(ascii(error.name)[1:-1])} stands twice in the header of {path.name}",
            hint=_REFETCH,
            files=[path.name],
        ) from error
    # Decode errors are ValueErrors, as is a number of too many digits.
    except (ValueError, RecursionError) as error:
        raise _bad_header(path, str(error)) from error


def _sizes(path: Path, columns: TensorColumns) -> list[int]:
    """Bytes of each tensor by its dtype and shape. A pack has 150,000 tensors of a few shapes."""
    known: dict[tuple[str, tuple[int, ...]], int] = {}
    for kind in set(zip(columns.dtypes, columns.shapes, strict=True)):
        dtype, shape = kind
        num_bits = math.prod(shape) * DTYPE_BITS.get(dtype, 1)
        if dtype not in DTYPE_BITS or num_bits % 8:
            kinds = list(zip(columns.dtypes, columns.shapes, strict=True))
            raise _bad_header(path, f"{columns.names[kinds.index(kind)]}: dtype {dtype!a}, shape {list(shape)}")
        known[kind] = num_bits // 8
    return list(map(known.__getitem__, zip(columns.dtypes, columns.shapes, strict=True)))


def _end_of_data(path: Path, columns: TensorColumns, sizes: list[int]) -> int:
    """Where the data end, from where they begin. The format allows neither holes nor two tensors in one place."""
    stored = list(map(sub, columns.ends, columns.starts))
    if stored != sizes:
        wrong = next(number for number, size in enumerate(sizes) if stored[number] != size)
        raise _bad_header(
            path,
            f"{columns.names[wrong]}: {stored[wrong]} bytes for {columns.dtypes[wrong]} {list(columns.shapes[wrong])}",
        )
    if columns.starts[:1] in ([], [0]) and columns.starts[1:] == columns.ends[:-1]:
        return columns.ends[-1] if columns.ends else 0
    end = 0
    for start, stop in sorted(zip(columns.starts, columns.ends, strict=True)):
        if start != end:
            raise _bad_header(path, f"data from byte {start} where byte {end} is next")
        end = stop
    return end


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _pointer(path: Path) -> DamageError:
    return DamageError(
        "shard-pointer",
        f"{path.name} is a pointer of Git LFS, not the file that it stands for",
        hint="run git lfs pull in the folder of the pack, or glm53-exl3 fetch",
        files=[path.name],
    )


def _truncated(path: Path, expected_bytes: int, file_bytes: int) -> DamageError:
    return DamageError(
        "shard-truncated",
        f"{path.name} is shorter than its header says",
        expected=f"{expected_bytes} bytes",
        found=f"{file_bytes} bytes",
        hint=_REFETCH,
        files=[path.name],
    )


def _bad_header(path: Path, found: str) -> DamageError:
    return DamageError(
        "shard-header",
        f"{path.name} has no readable safetensors header",
        found=_short(found),
        hint=_REFETCH,
        files=[path.name],
    )
