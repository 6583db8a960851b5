"""SHA-256 of many files, with as many readers as pay."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 4 << 20
#: One core hashes about 1.5 GB a second with SHA instructions, so a few readers fill any NVMe drive.
_MOST_READERS: Final = 8


def num_readers() -> int:
    """Readers that pay on this machine: one a core, at most eight."""
    return max(1, min(_MOST_READERS, len(os.sched_getaffinity(0))))


def sha256_of(path: Path, progress: Callable[[int], object] | None = None) -> str:
    """SHA-256 of one file, in hexadecimal.

    Args:
        path: a file.
        progress: called with the number of bytes of each piece that was read.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while length := file.readinto(buffer):
            digest.update(buffer[:length])
            if progress is not None:
                progress(length)
        # CUDA on unified memory counts cached pages as used, and nobody reads these bytes again soon.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest()


def git_blob_sha1_of(path: Path) -> str:
    """Git's name for the contents of a file, in hexadecimal: SHA-1 of `blob`, its size and its bytes.

    Raises:
        OSError: the file cannot be read.
    """
    contents = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False).hexdigest()


def iter_sha256(
    paths: Iterable[Path], progress: Callable[[int], object] | None = None, readers: int | None = None
) -> Generator[tuple[Path, str], None, None]:
    """Path and SHA-256 of each file as soon as it is known. hashlib releases the interpreter lock.

    When the caller stops early, by an exception or a signal, reading stops within a piece.

    Args:
        paths: files.
        progress: called from several threads with the number of bytes of each piece that was read.
        readers: files read at once, :func:`num_readers` by default.

    Raises:
        OSError: a file cannot be read.
    """
    stop = threading.Event()

    def count(num_bytes: int) -> None:
        if stop.is_set():
            raise _StoppedEarlyError
        if progress is not None:
            progress(num_bytes)

    with ThreadPoolExecutor(readers or num_readers()) as pool:
        path_of = {pool.submit(sha256_of, path, count): path for path in paths}
        try:
            for future in as_completed(path_of):
                yield path_of[future], future.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


class _StoppedEarlyError(Exception):
    """Ends a reader whose result nobody waits for."""


def sha256_of_all(
    paths: Iterable[Path], progress: Callable[[int], object] | None = None, readers: int | None = None
) -> dict[Path, str]:
    """SHA-256 by path, in the order of the paths; see :func:`iter_sha256`.

    Raises:
        OSError: a file cannot be read.
    """
    wanted = list(paths)
    found = dict(iter_sha256(wanted, progress, readers))
    return {path: found[path] for path in wanted}
