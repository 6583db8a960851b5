"""The manifest while a fetch runs: written after every file, so that no file is read or fetched twice."""

from __future__ import annotations

from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.listing import Commit, RemoteFile
from glm53_exl3.pack.manifest import MANIFEST_FILE, Manifest, ManifestFile, write_manifest


class Ledger:
    """Keeps the manifest of a folder.

    Args:
        folder: of the pack.
        commit: what is fetched.
        previous: the manifest that was there.
    """

    def __init__(self, folder: PackFolder, commit: Commit, previous: Manifest | None) -> None:
        self._folder = folder
        self._commit = commit
        self._previous = previous
        same_commit = previous is not None and previous.commit == commit.commit
        self._known = {file.path: file for file in previous.files} if previous else {}
        self._entries = {file.path: _entry(file, self._known.get(file.path), same_commit) for file in commit.files}

    def trusts(self, file: RemoteFile) -> bool:
        """Whether a file was found right before and has not changed since, by its size and its time.

        Copying a pack without its times, or touching a file, makes it untrusted, which costs reading it.
        """
        return self._unchanged(file, self._entries[file.path])

    def knows_better(self, file: RemoteFile) -> bool:
        """Whether a file was found to be that of another commit and has not changed since, so reading it is in vain."""
        known = self._known.get(file.path)
        if known is None or file.sha256 is None or known.sha256 == file.sha256:
            return False
        return self._unchanged(file, known)

    def start(self) -> None:
        """Write the manifest before anything is downloaded.

        Raises:
            HubError: `disk-full` or `target-unusable`.
        """
        self._write(complete=False)

    def verified(self, file: RemoteFile, sha256: str) -> None:
        """Record that a file in its place was found right.

        Raises:
            HubError: `disk-full` or `target-unusable`.
        """
        path = self._folder.path(file)
        with self._folder.writing(path):
            stat = path.stat()
        self._entries[file.path] = ManifestFile(file.path, file.num_bytes, sha256, stat.st_mtime_ns)
        self._write(complete=False)

    def distrust(self, file: RemoteFile) -> None:
        """Record that a file is not what it should be.

        Raises:
            HubError: `disk-full` or `target-unusable`.
        """
        self._entries[file.path] = ManifestFile(file.path, file.num_bytes, file.sha256)
        self._write(complete=False)

    def finish(self) -> None:
        """Write the manifest of a whole pack, unless it is there already.

        Raises:
            HubError: `disk-full` or `target-unusable`.
        """
        if self._previous != self._manifest(complete=True):
            self._write(complete=True)

    def _unchanged(self, file: RemoteFile, entry: ManifestFile) -> bool:
        try:
            stat = self._folder.path(file).stat()
        except OSError:
            return False
        return (entry.verified_mtime_ns, entry.num_bytes) == (stat.st_mtime_ns, stat.st_size)

    def _manifest(self, *, complete: bool) -> Manifest:
        commit = self._commit
        files = tuple(self._entries.values())
        return Manifest(commit.repository, commit.revision, commit.commit, commit.licence, complete, files)

    def _write(self, *, complete: bool) -> None:
        self._previous = self._manifest(complete=complete)
        with self._folder.writing(self._folder.directory / MANIFEST_FILE):
            write_manifest(self._folder.directory, self._previous)


def _entry(file: RemoteFile, known: ManifestFile | None, same_commit: bool) -> ManifestFile:
    """What is known of a file beforehand: its hash from the Hub, and what was verified of the same contents."""
    if known is not None and known.num_bytes == file.num_bytes:
        # Files in git have no sha256 at the Hub, so only the commit tells that they are the same.
        same = known.sha256 == file.sha256 if file.sha256 else same_commit
        if same:
            return known
    return ManifestFile(file.path, file.num_bytes, file.sha256)
