"""Page cache of a pack's files: how much of them it holds, and dropping or filling it without root.

On a GB10 pages of cached files count as used for CUDA. `posix_fadvise` drops the clean pages of files one may read, so
nobody needs `/proc/sys/vm/drop_caches`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

_PIECE_BYTES: Final = 1 << 30
_READ_BYTES: Final = 8 << 20
_READERS: Final = 4


def cached_bytes(paths: Iterable[Path]) -> int:
    """Bytes of these files that are in the page cache (`mincore(2)`).

    The kernel tells the truth to those who own a file or may write to it; to others all of it seems cached.

    Raises:
        OSError: a file cannot be read.
    """
    return sum(_cached(path) for path in paths)


def drop(paths: Iterable[Path]) -> None:
    """Drop clean pages of these files from the page cache.

    Raises:
        OSError: a file cannot be opened.
    """
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(paths: Iterable[Path]) -> int:
    """Read these files into the page cache with several readers; returns the bytes read.

    Raises:
        OSError: a file cannot be read.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        return sum(pool.map(_read_through, paths))


def _read_through(path: Path) -> int:
    buffer = bytearray(_READ_BYTES)
    total = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while length := file.readinto(buffer):
            total += length
    return total


def _cached(path: Path) -> int:
    size = path.stat().st_size
    page = mmap.PAGESIZE
    pages = 0
    with path.open("rb") as file:
        for offset in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - offset)
            with mmap.mmap(
                file.fileno(), length, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE, offset=offset
            ) as piece:
                pages += _resident_pages(piece, length, page)
    return min(size, pages * page)


def _resident_pages(piece: mmap.mmap, length: int, page: int) -> int:
    """Pages of a mapping that are in memory. It is private and writable only because ctypes takes no other."""
    libc = ctypes.CDLL(None, use_errno=True)
    num_pages = -(-length // page)
    states = (ctypes.c_ubyte * num_pages)()
    first = ctypes.c_char.from_buffer(piece)
    try:
        if libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length), states):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        # The mapping cannot be closed while something points into it.
        del first
    return bytes(states).translate(_LOWEST_BIT).count(1)


_LOWEST_BIT: Final = bytes(value & 1 for value in range(256))
