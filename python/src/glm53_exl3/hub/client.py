"""Requests to the Hub: the listing of a commit, and the bytes of a file from any offset.

`hf_hub_download` is not used for the files. It writes to a temporary file with a random name and removes it on
failure (huggingface_hub 2.4.0), so a fetch that is killed would begin each of its shards again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # loaded lazily

from glm53_exl3 import __version__
from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.failures import ANSWER_ERRORS, REQUEST_ERRORS, Subject, explain, strange_answer
from glm53_exl3.hub.listing import Commit, RemoteFile, commit_of

_LIBRARY: Final = "glm53-exl3"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


class HubClient:
    """One Hub, asked with one token.

    Args:
        token: None to ask without.
        endpoint: address of the Hub; `HF_ENDPOINT` or the public one by default.
        timeout_seconds: without a byte before a request counts as failed; `HF_HUB_DOWNLOAD_TIMEOUT` by default.

    Raises:
        HubError: `hub-endpoint`.
    """

    def __init__(self, token: str | None, *, endpoint: str | None = None, timeout_seconds: float | None = None) -> None:
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._token = token
        self._timeout = timeout_seconds or float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise HubError(
                "hub-endpoint",
                f"HF_ENDPOINT is {self.endpoint!r}, which is no address",
                expected="https://HOST",
                hint="unset HF_ENDPOINT",
            )
        # False keeps the library from looking for a token of its own.
        self._api = HfApi(endpoint=self.endpoint, token=token or False, library_name=_LIBRARY)

    def list_commit(self, repository: str, revision: str) -> Commit:
        """Resolve a revision and list its files.

        Raises:
            HubError: there is no such repository or revision, no access, or a strange answer.
            TransientError: the Hub did not answer or is busy.
        """
        subject = Subject(repository, revision, "", self.endpoint, self._token)
        try:
            info = self._api.model_info(repository, revision=revision, files_metadata=True, timeout=self._timeout)
        except (*REQUEST_ERRORS, *ANSWER_ERRORS) as error:
            raise explain(error, subject) from None
        if info.sha is None or not _COMMIT.fullmatch(info.sha) or not info.siblings:
            raise strange_answer(subject, "a listing without a commit or without files")
        files = [_remote_file(sibling, subject) for sibling in info.siblings]
        licence, link = _licence(info)
        return commit_of(repository, revision, info.sha, licence, link, files)

    @contextmanager
    def open(self, commit: Commit, file: RemoteFile, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The bytes of a file of a commit.

        Args:
            commit: the file is asked for by its commit, not by a branch that may move.
            file: one of its files.
            start: offset of the first byte wanted.

        Yields:
            Where the answer begins, either `start` or 0, and its pieces.

        Raises:
            HubError: no access, or a strange answer.
            TransientError: no or no complete answer; also while pieces are read.
        """
        subject = Subject(commit.repository, commit.commit, file.path, self.endpoint, self._token)
        url = hf_hub_url(commit.repository, file.path, revision=commit.commit, endpoint=self.endpoint)
        headers = build_hf_headers(token=self._token or False, library_name=_LIBRARY, library_version=__version__)
        # A compressed answer could not be resumed: offsets are of the bytes as sent.
        headers["Accept-Encoding"] = "identity"
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with get_session().stream("GET", url, headers=headers, timeout=self._timeout) as response:
                hf_raise_for_status(response)
                begin = 0
                if response.status_code == 206:
                    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
                    begin = int(match[1]) if match else -1
                if begin not in (0, start):
                    raise strange_answer(subject, f"Content-Range {response.headers.get('Content-Range')!r}")
                # Pieces as they come from the network: larger ones would be lost with the connection.
                yield begin, response.iter_bytes()
        except REQUEST_ERRORS as error:
            raise explain(error, subject) from None


def _remote_file(sibling: RepoSibling, subject: Subject) -> RemoteFile:
    path, size, lfs, blob = sibling.rfilename, sibling.size, sibling.lfs, sibling.blob_id
    if lfs is not None and _SHA256.fullmatch(str(lfs.sha256)) and type(lfs.size) is int and lfs.size >= 0:
        return RemoteFile(path, lfs.size, lfs.sha256, None)
    if lfs is None and type(size) is int and size >= 0 and blob is not None and _COMMIT.fullmatch(blob):
        return RemoteFile(path, size, None, blob)
    raise strange_answer(subject, f"{path!r} is listed without size or hash")


def _licence(info: ModelInfo) -> tuple[str, str]:
    card = info.card_data
    # A card may state a list although the type of the library says otherwise.
    stated: object = None if card is None else card.license
    if not stated:
        # Cards that cannot be parsed still leave the tag.
        stated = [tag.partition(":")[2] for tag in info.tags or [] if tag.startswith("license:")]
    ids = stated if isinstance(stated, list) else [stated]
    link = "" if card is None else str(card.license_link or card.license_name or "")
    return ", ".join(str(each).lower() for each in ids), link
