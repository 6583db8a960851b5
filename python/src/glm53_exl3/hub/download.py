"""All missing files of a commit: which of them has arrived, and how an end before the end is told."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.ledger import Ledger
from glm53_exl3.hub.listing import RemoteFile
from glm53_exl3.hub.pool import run_parallel
from glm53_exl3.hub.report import Reporter
from glm53_exl3.hub.transfer import Transfer, fetch_file
from glm53_exl3.hub.units import in_bytes

#: Errors that concern one file and not the way to the others.
_OF_ONE_FILE: Final = ("file-hash", "hub-answer", "file-in-the-way")


def download(shared: Transfer, missing: list[RemoteFile], ledger: Ledger, parallel: int, reporter: Reporter) -> None:
    """Download files, several at once, and record each as it arrives.

    A file with wrong contents does not keep the others from being downloaded; a full disk or a Hub that does not
    answer does.

    Args:
        shared: what, where from and where to.
        missing: files, begun in this order.
        ledger: told of each file in its place.
        parallel: files at once.
        reporter: told how far it is.

    Raises:
        HubError: the first failure, with how much is there.
    """
    left = {file.path: file for file in missing}
    failures: list[HubError] = []
    total, there = shared.commit.num_bytes, _bytes_there(shared, left)
    with reporter.progress(f"downloading {len(missing)} files", total, there) as progress:
        fetch_one = functools.partial(fetch_file, shared, note=reporter.note, progress=progress)
        try:
            with closing(run_parallel(fetch_one, missing, parallel, shared.stop)) as results:
                for file, result in results:
                    if isinstance(result, HubError):
                        failures.append(result)
                        if result.id not in _OF_ONE_FILE:
                            shared.stop.set()
                    elif isinstance(result, Exception):
                        raise result
                    else:
                        del left[file.path]
                        _record(ledger, reporter, file, *result)
        except (SystemExit, KeyboardInterrupt):
            reporter.note(f"interrupted; {_how_far(shared, left)}")
            raise
    if failures:
        raise _stopped(failures, _how_far(shared, left))


def _record(ledger: Ledger, reporter: Reporter, file: RemoteFile, sha256: str, replaced: Path | None) -> None:
    ledger.verified(file, sha256)
    if replaced is not None:
        reporter.note(f"{file.path} was replaced; what was there before is {replaced}")


def _stopped(failures: list[HubError], how_far: str) -> HubError:
    """What stopped everything, if anything did, otherwise the first file that could not be had."""
    worst = next((failure for failure in failures if failure.id not in _OF_ONE_FILE), failures[0])
    found = "; ".join(filter(None, (worst.found, how_far)))
    return HubError(worst.id, worst.what, expected=worst.expected, found=found, hint=worst.hint)


def _how_far(shared: Transfer, left: Mapping[str, RemoteFile]) -> str:
    done = in_bytes(_bytes_there(shared, left))
    return f"{done} of {in_bytes(shared.commit.num_bytes)} are there, and the same command resumes"


def _bytes_there(shared: Transfer, left: Mapping[str, RemoteFile]) -> int:
    return shared.commit.num_bytes - sum(file.num_bytes - shared.folder.partial_bytes(file) for file in left.values())
