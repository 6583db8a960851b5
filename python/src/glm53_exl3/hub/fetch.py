"""Fetch a pack: resolve, look at what is there, ask what has to be asked, download, prove, record."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from glm53_exl3.hub.client import HubClient
from glm53_exl3.hub.download import download
from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.folder import PackFolder
from glm53_exl3.hub.ledger import Ledger
from glm53_exl3.hub.licences import Terms, terms_of
from glm53_exl3.hub.listing import Commit, RemoteFile
from glm53_exl3.hub.names import Wanted
from glm53_exl3.hub.plan import FetchPlan, bytes_to_download, plan_fetch
from glm53_exl3.hub.report import Reporter
from glm53_exl3.hub.retry import RetryPolicy
from glm53_exl3.hub.source import Source
from glm53_exl3.hub.transfer import Transfer
from glm53_exl3.hub.units import quote
from glm53_exl3.pack.checksums import git_blob_sha1_of, iter_sha256
from glm53_exl3.pack.manifest import read_manifest


class Gate(Protocol):
    """What has to be settled before bytes are downloaded."""

    def accept_terms(self, terms: Terms) -> None:
        """Have a licence accepted.

        Raises:
            HubError: it is not.
        """

    def before_download(self, num_bytes: int) -> None:
        """Look whether what is downloaded can be used.

        Raises:
            HubError: it cannot.
        """


@dataclass(frozen=True)
class FetchOptions:
    """How to fetch.

    Attributes:
        wanted: what.
        directory: where to.
        parallel: files at once.
        repair: read and hash every file, whatever the manifest says.
        policy: when to give up.
    """

    wanted: Wanted
    directory: Path
    parallel: int = 8
    repair: bool = False
    policy: RetryPolicy = field(default_factory=RetryPolicy)


@dataclass(frozen=True)
class Outcome:
    """What a fetch did.

    Attributes:
        commit: what the folder holds now.
        num_downloaded: files that were downloaded.
        bytes_downloaded: without what earlier runs had downloaded.
        not_compared: why the Hub was not asked; empty when it was.
    """

    commit: Commit
    num_downloaded: int
    bytes_downloaded: int
    not_compared: str


class Fetch:
    """One fetch into one folder.

    Args:
        options: how.
        source: what the folder should hold, from the Hub or from the manifest.
        client: where to download from; not used when the source is the manifest.
        reporter: told what happens.

    Raises:
        HubError: `file-surplus` or `file-in-the-way`.
    """

    def __init__(self, options: FetchOptions, source: Source, client: HubClient | None, reporter: Reporter) -> None:
        self._options = options
        self._source = source
        self._client = None if source.not_compared else client
        self._reporter = reporter
        self._commit = source.commit
        self._folder = PackFolder(options.directory)
        self._ledger = Ledger(self._folder, source.commit, source.manifest)
        self.plan: FetchPlan = plan_fetch(source.commit, self._folder, self._ledger, repair=options.repair)
        pin = options.wanted.pin
        self.terms = terms_of(source.commit.licence, pin.licence if pin else None, source.commit.licence_link)
        self.free_bytes = self._folder.free_bytes()

    def run(self, gate: Gate) -> Outcome:
        """Make the folder hold the commit.

        Raises:
            HubError: it cannot; what was downloaded so far stays and is used by the next run.
        """
        if self._is_done():
            return self._outcome([])
        missing = list(self.plan.missing)
        self._settle(gate, missing)
        with self._folder.locked():
            self._require_unchanged()
            self._ledger.start()
            damaged = self._check_unchecked()
            if damaged:
                missing += damaged
                self._settle(gate, missing)
            if missing and self._client is not None:
                shared = Transfer(self._client, self._commit, self._folder, self._options.policy)
                download(shared, missing, self._ledger, self._options.parallel, self._reporter)
            self._ledger.finish()
            self._folder.clean()
        return self._outcome(missing)

    def _require_unchanged(self) -> None:
        """The plan was made before the folder was locked, so another fetch may have ended in between."""
        if read_manifest(self._options.directory) != self._source.manifest:
            raise HubError(
                "fetch-running",
                f"another fetch wrote to {self._options.directory} just now",
                hint="run the same command again; it looks at what is there now",
            )

    def _is_done(self) -> bool:
        """Whether there is nothing to do: all is trusted, or the Hub is not asked and all sizes are right."""
        manifest = self._source.manifest
        if self._options.repair or self.plan.missing or manifest is None or not manifest.complete:
            return False
        if self._client is None:
            return True
        recorded = (manifest.commit, manifest.revision, manifest.licence)
        return not self.plan.unchecked and recorded == (
            self._commit.commit,
            self._commit.revision,
            self._commit.licence,
        )

    def _outcome(self, downloaded: list[RemoteFile]) -> Outcome:
        num_bytes = bytes_to_download(downloaded, self.plan.partial_bytes)
        return Outcome(self._commit, len(downloaded), num_bytes, self._source.not_compared)

    def _settle(self, gate: Gate, missing: list[RemoteFile]) -> None:
        """Settle what has to be settled before files are downloaded."""
        if self._client is None:
            self._refuse_missing(missing)
        elif missing:
            num_bytes = bytes_to_download(missing, self.plan.partial_bytes)
            if self.terms.objections:
                gate.accept_terms(self.terms)
            self._folder.require_room(num_bytes)
            gate.before_download(num_bytes)

    def _refuse_missing(self, missing: list[RemoteFile]) -> None:
        """Without the Hub, missing files cannot be had, and files without a known hash cannot be proven."""
        lacking = missing or [file for file in self.plan.unchecked if file.sha256 is None]
        if not lacking:
            return
        names = ", ".join(file.path for file in lacking[:5]) + (" ..." if len(lacking) > 5 else "")
        wanted, directory = self._options.wanted, self._options.directory
        raise HubError(
            "pack-incomplete",
            f"{len(lacking)} of {len(self._commit.files)} files of {self._commit.repository} are missing, damaged or "
            f"not known to be right, and {self._source.not_compared}",
            expected=f"commit {self._commit.commit} in {directory}",
            found=f"all but {names}",
            hint=f"with the Hub in reach: glm53-exl3 fetch {wanted.typed} --dir {quote(directory)}",
        )

    def _check_unchecked(self) -> list[RemoteFile]:
        """Hash the files that are there; returns those with other contents."""
        by_path = {self._folder.path(file): file for file in self.plan.unchecked}
        if not by_path:
            return []
        damaged = []
        total = sum(file.num_bytes for file in by_path.values())
        with (
            self._reporter.progress(f"checking {len(by_path)} files", total, 0) as progress,
            self._folder.reading(),
            closing(iter_sha256(by_path, progress)) as hashes,
        ):
            for path, sha256 in hashes:
                file = by_path[path]
                if _is_right(file, path, sha256):
                    self._ledger.verified(file, sha256)
                else:
                    self._ledger.distrust(file)
                    damaged.append(file)
        for file in damaged:
            self._reporter.note(f"{file.path} has other contents than in commit {self._commit.commit[:12]}")
        return damaged


def _is_right(file: RemoteFile, path: Path, sha256: str) -> bool:
    if file.sha256 is not None:
        return sha256 == file.sha256
    return git_blob_sha1_of(path) == file.git_sha1
