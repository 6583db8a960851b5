"""What a fetch will do, found out without reading or writing a byte of the pack."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.ledger import Ledger
from glm53_exl3.hub.listing import Commit, RemoteFile
from glm53_exl3.hub.units import quote


@dataclass(frozen=True)
class FetchPlan:
    """Files of a commit by what has to be done about them.

    Attributes:
        commit: what is fetched.
        trusted: there, and found right before.
        unchecked: there with the right size, to be read and hashed.
        missing: not there, or with another size.
        partial_bytes: by path, how much of a missing file was downloaded before.
    """

    commit: Commit
    trusted: tuple[RemoteFile, ...]
    unchecked: tuple[RemoteFile, ...]
    missing: tuple[RemoteFile, ...]
    partial_bytes: Mapping[str, int]

    @property
    def bytes_there(self) -> int:
        """Size of the files that are there, and of what is there of others."""
        return self.commit.num_bytes - self.bytes_to_download

    @property
    def bytes_to_download(self) -> int:
        """What is missing of the missing files."""
        return bytes_to_download(self.missing, self.partial_bytes)


def bytes_to_download(files: tuple[RemoteFile, ...] | list[RemoteFile], partial_bytes: Mapping[str, int]) -> int:
    """Size of files without what is there of them."""
    return sum(file.num_bytes - partial_bytes.get(file.path, 0) for file in files)


def plan_fetch(commit: Commit, folder: PackFolder, ledger: Ledger, *, repair: bool) -> FetchPlan:
    """Sort the files of a commit by their sizes and by what the manifest says.

    Args:
        commit: what is fetched.
        folder: where to.
        ledger: what is known of the files.
        repair: trust no file.

    Raises:
        HubError: `file-surplus` or `file-in-the-way`.
    """
    _refuse_surplus(commit, folder)
    trusted, unchecked, missing = [], [], []
    for file in commit.files:
        folder.require_place(file)
        if not _has_size(folder, file) or (ledger.knows_better(file) and not repair):
            missing.append(file)
        elif ledger.trusts(file) and not repair:
            trusted.append(file)
        else:
            unchecked.append(file)
    # Small files first: whoever looks into the folder meanwhile can read what is coming.
    missing.sort(key=lambda file: (file.num_bytes, file.path))
    partial = {file.path: folder.partial_bytes(file) for file in missing}
    return FetchPlan(commit, tuple(trusted), tuple(unchecked), tuple(missing), partial)


def _has_size(folder: PackFolder, file: RemoteFile) -> bool:
    try:
        found = folder.path(file).stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == file.num_bytes


def _refuse_surplus(commit: Commit, folder: PackFolder) -> None:
    surplus = folder.surplus_shards(commit)
    if not surplus:
        return
    more = f" and {len(surplus) - 3} more" if len(surplus) > 3 else ""
    aside = folder.directory.with_name(f"{folder.directory.name}.surplus")
    raise HubError(
        "file-surplus",
        f"{folder.directory} holds {len(surplus)} shard{'s' if len(surplus) > 1 else ''} that commit "
        f"{commit.commit[:12]} of {commit.repository} does not have",
        expected="no .safetensors file but those of the commit, because a loader reads them all",
        found=", ".join(surplus[:3]) + more,
        hint=f"mkdir -p {quote(aside)} && cd {quote(folder.directory)} && mv -- {' '.join(map(quote, surplus))} "
        f"{quote(aside)}",
    )
