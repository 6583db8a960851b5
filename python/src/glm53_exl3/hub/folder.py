"""The folder that a pack is fetched into: where its files go, and how nothing in it is lost."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.listing import STATE_FOLDER, Commit, RemoteFile
from glm53_exl3.hub.units import in_bytes, quote
from glm53_exl3.pack.files import SHARD_GLOB

PACKS_VARIABLE: Final = "GLM53_EXL3_PACKS"
_PARTIAL: Final = "partial"
_ASIDE: Final = "aside"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def default_folder(basename: str) -> Path:
    """Where a repository goes when nothing else was asked: below `GLM53_EXL3_PACKS`, else below `~/models`."""
    packs = os.environ.get(PACKS_VARIABLE)
    return (Path(packs) if packs else Path("~/models")).expanduser() / basename


class PackFolder:
    """One folder of a pack.

    Args:
        directory: need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._state = directory / STATE_FOLDER

    def path(self, file: RemoteFile) -> Path:
        """Where a file belongs."""
        return self.directory / file.path

    def partial_path(self, file: RemoteFile) -> Path:
        """Where the first bytes of a file are kept until it is whole.

        The name holds the hash of the contents, so what was begun under another commit or branch is resumed exactly
        when the contents are the same.
        """
        # Two files with the same contents must not be written by two threads at once.
        path_hash = hashlib.sha256(file.path.encode()).hexdigest()[:16]
        return self._state / _PARTIAL / f"{file.sha256 or file.git_sha1}-{path_hash}"

    def partial_bytes(self, file: RemoteFile) -> int:
        """How much of a file was downloaded before."""
        with suppress(OSError):
            num_bytes = self.partial_path(file).stat().st_size
            return num_bytes if num_bytes <= file.num_bytes else 0
        return 0

    def require_usable(self) -> None:
        """Refuse something that is no folder, or one that may not be read.

        Raises:
            HubError: `target-unusable`.
        """
        with self.writing(self.directory), suppress(FileNotFoundError):
            os.scandir(self.directory).close()

    def surplus_shards(self, commit: Commit) -> list[str]:
        """Names of shards at the root that the commit does not have; a loader would read them with the others."""
        listed = {file.path for file in commit.files}
        return sorted(path.name for path in self.directory.glob(SHARD_GLOB) if path.name not in listed)

    def require_room(self, num_bytes: int) -> None:
        """Compare free disk with what is to be written, plus 1 % and 64 MiB for whatever else writes meanwhile.

        Raises:
            HubError: `disk-full`.
        """
        needed = num_bytes + num_bytes // 100 + (64 << 20)
        free = self.free_bytes()
        if num_bytes and free < needed:
            raise HubError(
                "disk-full",
                f"the file system of {self.directory} has too little room",
                expected=f"{in_bytes(needed)} free",
                found=f"{in_bytes(free)} free",
                hint=f"free {in_bytes(needed - free)}, or fetch to another file system with --dir",
            )

    def free_bytes(self) -> int:
        """Free bytes of the file system of the folder, for users without privileges."""
        existing = next(path for path in (self.directory, *self.directory.absolute().parents) if path.exists())
        return shutil.disk_usage(existing).free

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and keep other fetches out of it.

        Raises:
            HubError: `fetch-running` or `target-unusable`.
        """
        with self.writing(self.directory):
            (self._state / _PARTIAL).mkdir(parents=True, exist_ok=True)
        # The lock is on the folder itself and ends with the process, so there is no lock file to be left behind.
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HubError(
                    "fetch-running",
                    f"another fetch writes to {self.directory}",
                    hint="wait for it; it can be stopped with Ctrl-C and resumed",
                ) from None
            except OSError:
                # Some network file systems cannot lock a folder.
                pass
            yield
        finally:
            os.close(descriptor)

    def require_place(self, file: RemoteFile) -> None:
        """Refuse a file whose place is taken by something that is no file, or lies outside the folder.

        Raises:
            HubError: `file-in-the-way`.
        """
        path, root = self.path(file), self.directory.resolve()
        parents = path.parents[: len(Path(file.path).parents) - 1]
        blocked = next((parent for parent in parents if parent.exists() and not parent.is_dir()), None)
        outside = next((parent for parent in parents if not parent.resolve().is_relative_to(root)), None)
        taken = path if path.exists() and not path.is_file() else None
        if offender := blocked or outside or taken:
            raise HubError(
                "file-in-the-way",
                f"{file.path} has no place in {self.directory}: {offender} is "
                + ("a link out of the folder" if offender is outside else "something else"),
                hint=f"mv {quote(offender)} {quote(f'{offender}.mine')}",
            )

    def place(self, file: RemoteFile) -> Path | None:
        """Move a whole file from its partial download to where it belongs.

        Returns:
            Where the file that was there before lies now, None when there was none.

        Raises:
            HubError: `file-in-the-way`, `target-unusable`.
        """
        target = self.path(file)
        self.require_place(file)
        with self.writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            moved = self._set_aside(file, target) if os.path.lexists(target) else None
            self.partial_path(file).replace(target)
        return moved

    def clean(self) -> None:
        """Remove partial downloads, once nothing is missing, and the folder that held them when it is empty."""
        shutil.rmtree(self._state / _PARTIAL, ignore_errors=True)
        with suppress(OSError):
            self._state.rmdir()

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Name what goes wrong while something is written.

        Raises:
            HubError: `disk-full` or `target-unusable`.
        """
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise HubError(
                    "disk-full",
                    f"the file system of {self.directory} is full",
                    found=f"{error.strerror} while writing {path.name}",
                    hint="free some room and run the same command; it resumes where it stopped",
                ) from error
            raise HubError(
                "target-unusable",
                f"{path} cannot be used",
                found=error.strerror or str(error),
                hint="choose a folder of yours with --dir, or set GLM53_EXL3_PACKS",
            ) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Name what goes wrong while files are read.

        Raises:
            HubError: `file-unreadable`.
        """
        try:
            yield
        except OSError as error:
            raise HubError(
                "file-unreadable",
                f"{error.filename or self.directory} cannot be read",
                found=error.strerror or str(error),
                hint=f"ls -l {quote(error.filename or self.directory)}; dmesg | tail shows errors of the disk",
            ) from error

    def _set_aside(self, file: RemoteFile, target: Path) -> Path:
        names = (self._state / _ASIDE / f"{file.path}.{number}" for number in itertools.count(1))
        aside = next(path for path in names if not os.path.lexists(path))
        aside.parent.mkdir(parents=True, exist_ok=True)
        target.rename(aside)
        return aside
