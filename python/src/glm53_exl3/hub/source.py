"""What a folder should hold: as the Hub says, or as the manifest says when the Hub is not asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from glm53_exl3.hub.client import HubClient
from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.listing import Commit, commit_of_manifest
from glm53_exl3.hub.names import Wanted
from glm53_exl3.hub.retry import Attempts, RetryPolicy
from glm53_exl3.hub.units import quote
from glm53_exl3.pack.manifest import Manifest, read_manifest

#: Errors that say nothing about what the Hub holds.
_NO_ANSWER: Final = ("hub-unreachable", "hub-busy", "hub-offline")
#: Attempts to reach the Hub when the manifest could do instead.
_SHORT_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class Source:
    """What a folder should hold.

    Attributes:
        commit: the files.
        manifest: the manifest in the folder, None when there is none.
        not_compared: why the commit is that of the manifest and nothing can be downloaded, as the end of a sentence;
            empty when the Hub was asked.
    """

    commit: Commit
    manifest: Manifest | None
    not_compared: str


@dataclass(frozen=True)
class Finder:
    """Finds out what a folder should hold.

    Attributes:
        wanted: what was asked for.
        directory: the folder.
        repair: stay at the commit of the manifest unless a revision was named.
        policy: when to give up.
        wait: sleeps for so many seconds.
        note: told what a user should know.
    """

    wanted: Wanted
    directory: Path
    repair: bool
    policy: RetryPolicy
    wait: Callable[[float], object]
    note: Callable[[str], object]

    def offline(self, reason: str) -> Source:
        """What the manifest says.

        Args:
            reason: why the Hub is not asked, as the end of a sentence.

        Raises:
            HubError: `hub-offline` without a manifest, `other-commit`, or as :meth:`manifest`.
        """
        manifest = self.manifest()
        if manifest is None:
            raise HubError(
                "hub-offline",
                f"{self.wanted.repository} was not fetched into {self.directory} before, and {reason}",
                hint=f"name its folder with --dir, or with the Hub in reach: glm53-exl3 fetch {self.wanted.typed}",
            )
        if not self._stays(manifest):
            raise HubError(
                "other-commit",
                f"{self.directory} holds another commit of {self.wanted.repository}, and {reason}",
                expected=f"revision {self.wanted.revision}",
                found=f"commit {manifest.commit} of revision {manifest.revision}",
                hint=f"to use it: glm53-exl3 fetch {self.wanted.repository}@{manifest.commit} --offline "
                f"--dir {quote(self.directory)}",
            )
        return Source(commit_of_manifest(manifest), manifest, reason)

    def online(self, client: HubClient) -> Source:
        """What the Hub says; what the manifest says when the Hub does not answer and that is what was asked for.

        Raises:
            HubError: no such repository or revision, no access, no answer, or as :meth:`manifest`.
        """
        manifest = self.manifest()
        fixed = manifest.commit if manifest and self.repair and not self.wanted.explicit else None
        policy, usable = self.policy, manifest is not None and self._stays(manifest)
        if usable:
            policy = dataclasses.replace(policy, attempts=min(policy.attempts, _SHORT_ATTEMPTS))
        attempts = Attempts(policy, self.wait, self.note)
        try:
            commit = attempts.call(lambda: client.list_commit(self.wanted.repository, fixed or self.wanted.revision))
        except HubError as error:
            if usable and error.id in _NO_ANSWER:
                return self.offline(f"{error.what} ({error.found})" if error.found else error.what)
            raise
        if manifest and fixed:
            commit = dataclasses.replace(commit, revision=manifest.revision)
        self._describe_change(manifest, commit)
        return Source(commit, manifest, "")

    def manifest(self) -> Manifest | None:
        """The manifest in the folder.

        Raises:
            HubError: `other-repository` or `target-unusable`.
            PackError: `manifest-invalid`.
        """
        PackFolder(self.directory).require_usable()
        manifest = read_manifest(self.directory)
        if manifest is not None and manifest.repository.casefold() != self.wanted.repository.casefold():
            same_name = self.directory.name == self.wanted.basename
            elsewhere = self.directory.with_name(self.wanted.basename + ("-2" if same_name else ""))
            raise HubError(
                "other-repository",
                f"{self.directory} holds another repository",
                expected=self.wanted.repository,
                found=manifest.repository,
                hint=f"glm53-exl3 fetch {self.wanted.typed} --dir {quote(elsewhere)}",
            )
        return manifest

    def _stays(self, manifest: Manifest) -> bool:
        return (self.repair and not self.wanted.explicit) or self.wanted.means(manifest.revision, manifest.commit)

    def _describe_change(self, manifest: Manifest | None, commit: Commit) -> None:
        if manifest is not None and manifest.commit != commit.commit:
            self.note(
                f"{self.directory} held commit {manifest.commit[:12]}; {commit.revision} is {commit.commit[:12]} now. "
                "Files with the same contents are kept."
            )
        for path in commit.reserved:
            self.note(f"{path} of the repository is not taken: this program keeps its own under that name")
        pin = self.wanted.pin
        shards = [file for file in commit.files if file.is_shard]
        found = len(shards), sum(file.num_bytes for file in shards)
        if pin is not None and found != (pin.shards, pin.weight_bytes):
            self.note(
                f"this release knows {pin.name} with {pin.shards} shards of {pin.weight_bytes:,} bytes; "
                f"this commit has {found[0]} of {found[1]:,}"
            )
