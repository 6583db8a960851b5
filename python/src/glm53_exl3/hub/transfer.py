"""One file from the Hub to the disk: resumed, hashed as it arrives, and not accepted unless its hash is right."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from glm53_exl3.hub.client import HubClient
from glm53_exl3.hub.errors import HubError, StoppedError, TransientError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.listing import Commit, RemoteFile
from glm53_exl3.hub.retry import Attempts, RetryPolicy

_READ_BYTES: Final = 4 << 20
#: Times that a whole file with wrong contents is accepted as bad luck.
_DOWNLOADS: Final = 2


@dataclass(frozen=True)
class Transfer:
    """What all downloads of one fetch share.

    Attributes:
        client: the Hub.
        commit: what is fetched.
        folder: where to.
        policy: when to give up.
        stop: set to make every download end.
    """

    client: HubClient
    commit: Commit
    folder: PackFolder
    policy: RetryPolicy
    stop: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> None:
        """Sleep, unless everything is to end.

        Raises:
            StoppedError: it is.
        """
        if self.stop.wait(seconds):
            raise StoppedError


class ContentHash:
    """The hashes of a file, fed piece by piece.

    Args:
        file: says how large it is and which hash proves it.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._git_sha1 = hashlib.sha1(b"blob %d\0" % file.num_bytes, usedforsecurity=False) if file.git_sha1 else None

    def update(self, piece: bytes) -> None:
        """The next piece."""
        self._sha256.update(piece)
        if self._git_sha1 is not None:
            self._git_sha1.update(piece)

    @property
    def sha256(self) -> str:
        """SHA-256 of all pieces, in hexadecimal."""
        return self._sha256.hexdigest()

    def fault(self) -> tuple[str, str] | None:
        """`(expected, found)` when the contents are not those of the file, else None."""
        if self._file.sha256 is not None and self.sha256 != self._file.sha256:
            return f"sha256 {self._file.sha256}", f"sha256 {self.sha256}"
        if self._git_sha1 is not None and self._git_sha1.hexdigest() != self._file.git_sha1:
            return f"git blob {self._file.git_sha1}", f"git blob {self._git_sha1.hexdigest()}"
        return None


def fetch_file(
    shared: Transfer, file: RemoteFile, *, note: Callable[[str], object], progress: Callable[[int], object]
) -> tuple[str, Path | None]:
    """Download one file and put it in its place.

    Args:
        shared: what, where from and where to.
        file: one file of the commit.
        note: told what a user should know.
        progress: called with the number of bytes that arrived; negative when some are thrown away.

    Returns:
        SHA-256 of its contents, and where the file lies that was in its place before.

    Raises:
        HubError: `file-hash`, or the Hub or the disk does not let it.
        StoppedError: everything is to end.
    """
    partial = shared.folder.partial_path(file)
    faults: list[tuple[str, str]] = []
    while len(faults) < _DOWNLOADS:
        if faults:
            note(f"{file.path} arrived with wrong contents; downloading it once more")
        with shared.folder.writing(partial), partial.open("a+b") as out:
            contents = _Partial(shared, file, out, progress).complete(note)
            out.flush()
            # The manifest will say that the contents are right, so they must outlive a loss of power.
            os.fsync(out.fileno())
            # On a GB10 the GPU shares the memory that 91 GiB of cached pages would fill.
            os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        fault = contents.fault()
        if fault is None:
            return contents.sha256, shared.folder.place(file)
        partial.unlink()
        progress(-file.num_bytes)
        faults.append(fault)
    expected, found = faults[-1]
    raise HubError(
        "file-hash",
        f"{file.path} of {shared.commit.repository} arrived with wrong contents, {_DOWNLOADS} times",
        expected=expected,
        found=found,
        hint="something between the Hub and this machine changes the data: try another network, without a proxy",
    )


class _Partial:
    """A file on its way.

    Args:
        shared: what, where from and where to.
        file: which.
        out: what an earlier run left of it, open for reading and appending.
        progress: called with the number of bytes that arrived.
    """

    def __init__(self, shared: Transfer, file: RemoteFile, out: BinaryIO, progress: Callable[[int], object]) -> None:
        self._shared = shared
        self._file = file
        self._out = out
        self._progress = progress
        self._contents = ContentHash(file)
        self._size = 0

    def complete(self, note: Callable[[str], object]) -> ContentHash:
        """Append until the file has its size; the hash of all of it.

        Raises:
            HubError: no attempt is left, or none would help.
            StoppedError: everything is to end.
        """
        self._read_what_is_there()
        attempts = Attempts(self._shared.policy, self._shared.wait, note)
        most = self._size
        while self._size < self._file.num_bytes:
            try:
                self._append_once()
            except TransientError as failure:
                # A server that always sends the same beginning brings nothing new.
                if self._size > most:
                    most = self._size
                    attempts.progressed()
                attempts.failed(failure)
        return self._contents

    def _read_what_is_there(self) -> None:
        self._out.seek(0)
        while piece := self._out.read(_READ_BYTES):
            if self._shared.stop.is_set():
                raise StoppedError
            self._contents.update(piece)
            self._size += len(piece)
        if self._size > self._file.num_bytes:
            self._begin_again()

    def _begin_again(self) -> None:
        self._out.truncate(0)
        self._contents, self._size = ContentHash(self._file), 0

    def _append_once(self) -> None:
        shared, file = self._shared, self._file
        with shared.client.open(shared.commit, file, self._size) as (begin, pieces):
            if begin != self._size:
                # The server sends the whole file although only the rest was asked for.
                self._progress(-self._size)
                self._begin_again()
            for piece in pieces:
                if shared.stop.is_set():
                    raise StoppedError
                self._contents.update(piece)
                # A file that is longer than listed fails its hash without filling the disk.
                kept = piece[: file.num_bytes - self._size]
                self._out.write(kept)
                self._size += len(kept)
                self._progress(len(kept))
                if len(kept) < len(piece):
                    return
        if self._size < file.num_bytes:
            raise _ended_early(shared, file, self._size)


def _ended_early(shared: Transfer, file: RemoteFile, size: int) -> TransientError:
    return TransientError(
        HubError(
            "hub-unreachable",
            f"{shared.client.endpoint} ended {file.path} after {size:,} of {file.num_bytes:,} bytes",
            hint="run the same command again; it resumes where it stopped",
        )
    )
