"""The files of one commit: what they are called, how large they are, and which hash proves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from glm53_exl3.hub.errors import HubError
from glm53_exl3.pack.manifest import MANIFEST_FILE, Manifest

#: Folder in the target for partial downloads and for files that were set aside.
STATE_FOLDER: Final = ".glm53-exl3"
_SHARD_SUFFIX: Final = ".safetensors"


@dataclass(frozen=True)
class RemoteFile:
    """One file of a commit.

    Attributes:
        path: relative to the root of the repository, with forward slashes.
        num_bytes: its size.
        sha256: of its bytes, 64 hexadecimal digits; None for a file that git itself stores.
        git_sha1: its git blob id, 40 hexadecimal digits; None for a file in large file storage.
    """

    path: str
    num_bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def is_shard(self) -> bool:
        """Whether it would be read as weights of the pack: a safetensors file at the root."""
        return self.path.endswith(_SHARD_SUFFIX) and "/" not in self.path


@dataclass(frozen=True)
class Commit:
    """All files of one commit of a repository.

    Attributes:
        repository: as owner/name.
        revision: what was resolved: a branch, a tag or a commit.
        commit: what that is, 40 hexadecimal digits.
        licence: licence id in lower case, comma-separated when there are several, empty when none is stated.
        licence_link: name or address of the terms of a licence called `other`.
        files: in the order of their paths.
        reserved: files of the repository that are not taken because this program keeps its own under their names.
    """

    repository: str
    revision: str
    commit: str
    licence: str
    licence_link: str
    files: tuple[RemoteFile, ...]
    reserved: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.num_bytes for file in self.files)


def commit_of(
    repository: str, revision: str, commit: str, licence: str, licence_link: str, files: list[RemoteFile]
) -> Commit:
    """A commit after a look at its file names.

    Raises:
        HubError: `file-name`: a name would leave the folder, or could not be written.
    """
    reserved = tuple(file.path for file in files if _is_reserved(file.path))
    taken = sorted((file for file in files if not _is_reserved(file.path)), key=lambda file: file.path)
    for file in taken:
        require_safe(file.path, repository)
    return Commit(repository, revision, commit, licence, licence_link, tuple(taken), reserved)


def commit_of_manifest(manifest: Manifest) -> Commit:
    """What a manifest knows of its commit: enough to check a folder without the Hub."""
    files = tuple(RemoteFile(file.path, file.num_bytes, file.sha256, None) for file in manifest.files)
    return Commit(manifest.repository, manifest.revision, manifest.commit, manifest.licence, "", files)


def require_safe(path: str, repository: str) -> None:
    """Refuse the name of a file that would leave the folder it is written to.

    Raises:
        HubError: `file-name`.
    """
    parts = path.split("/")
    # Backslashes and drives are harmless here and are not on a Windows machine the pack is copied to.
    sound = path.isprintable() and "\\" not in path and ":" not in path
    if sound and all(part not in ("", ".", "..") and len(part.encode()) <= 255 for part in parts):
        return
    raise HubError(
        "file-name",
        f"{repository} has a file called {path!r}, which is not written",
        expected="names that stay inside the folder of the pack",
        hint="ask the owner of the repository to rename it; nothing of this commit was downloaded",
    )


def _is_reserved(path: str) -> bool:
    return path == MANIFEST_FILE or path.partition("/")[0] == STATE_FOLDER
