"""From the exceptions of huggingface_hub and its HTTP library to errors with a remedy."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # loaded lazily

from glm53_exl3.hub.errors import HubError, TransientError
from glm53_exl3.hub.token import hide_token

#: Base class of what the HTTP library raises. It is httpx under huggingface_hub 1 and httpx2 under 2.
HTTP_ERROR: Final = cast(type[Exception], HfHubHTTPError.__mro__[1])
#: What a request raises.
REQUEST_ERRORS: Final = (HTTP_ERROR, OfflineModeIsEnabled)
#: What reading an answer raises that is not as expected.
ANSWER_ERRORS: Final = (ValueError, KeyError, TypeError, AttributeError)
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class Subject:
    """What a request was about.

    Attributes:
        repository: as owner/name.
        revision: as it was asked for.
        path: the file, empty for the listing.
        endpoint: address of the Hub.
        token: what was sent, to keep it out of messages; None when nothing was.
    """

    repository: str
    revision: str
    path: str
    endpoint: str
    token: str | None

    @property
    def text(self) -> str:
        """For sentences."""
        return f"{self.path} of {self.repository}" if self.path else self.repository


def explain(error: Exception, subject: Subject) -> HubError | TransientError:
    """The error to raise for one of :data:`REQUEST_ERRORS` or :data:`ANSWER_ERRORS`."""
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error, subject)
    if isinstance(error, OfflineModeIsEnabled):
        return HubError("hub-offline", "HF_HUB_OFFLINE is set, so the Hub is not asked", hint="unset HF_HUB_OFFLINE")
    if isinstance(error, HTTP_ERROR):
        return TransientError(
            HubError(
                "hub-unreachable",
                f"no answer from {subject.endpoint} for {subject.text}",
                found=hide_token(f"{type(error).__name__}: {error}", subject.token).rstrip(": "),
                hint=f"curl -sSI {subject.endpoint} shows whether this machine gets there",
            )
        )
    return strange_answer(subject, f"{type(error).__name__}: {error}")


def strange_answer(subject: Subject, found: str) -> HubError:
    """The Hub answered, and not as its interface says."""
    return HubError(
        "hub-answer",
        f"{subject.endpoint} gave an unexpected answer for {subject.text}",
        found=hide_token(found, subject.token),
        hint="look whether HF_ENDPOINT or a proxy leads elsewhere than to the Hub",
    )


def asked_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a server asked to wait, None when it did not.

    Args:
        headers: of the answer. `RateLimit` of the Hub comes before `Retry-After`, in seconds or as a date.
        now: seconds since the epoch, the clock's by default.
    """
    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - (time.time() if now is None else now))


def _explain_status(error: HfHubHTTPError, subject: Subject) -> HubError | TransientError:
    response, endpoint = error.response, subject.endpoint
    status = response.status_code
    elsewhere = not str(response.url).startswith(endpoint)
    # Storage refuses an address whose signature has run out; the next attempt gets a new one from the Hub.
    if status in _AGAIN or (elsewhere and status in (401, 403)):
        busy = HubError(
            "hub-busy",
            f"{'the storage of ' if elsewhere else ''}{endpoint} did not serve {subject.text}",
            found=f"HTTP status {status}",
            hint="run the same command later; it resumes where it stopped",
        )
        return TransientError(busy, asked_wait(response.headers))
    return _explain_refusal(error, subject)


def _explain_refusal(error: HfHubHTTPError, subject: Subject) -> HubError:
    status, said = error.response.status_code, error.server_message or ""
    if isinstance(error, GatedRepoError):
        return _gated(subject)
    if isinstance(error, RevisionNotFoundError):
        return HubError(
            "revision-unknown",
            f"{subject.repository} has no revision {subject.revision!r}",
            hint=f"choose a branch, tag or commit from {subject.endpoint}/{subject.repository}/commits/main",
        )
    if status == 401 and subject.token and "invalid" in said.lower():
        return HubError(
            "token-refused",
            f"{subject.endpoint} does not accept the token",
            hint="hf auth login makes a new one; a public pack needs none: unset HF_TOKEN",
        )
    if isinstance(error, RepositoryNotFoundError) or status == 401 or (status == 404 and not subject.path):
        return _not_found(subject)
    if isinstance(error, DisabledRepoError) or status == 403:
        return _refused(subject, said or f"HTTP status {status}")
    return strange_answer(subject, f"HTTP status {status} {said}".rstrip())


def _gated(subject: Subject) -> HubError:
    return HubError(
        "repository-gated",
        f"{subject.repository} is given only to users who accepted its terms",
        found="a token of a user who did not" if subject.token else "no token",
        hint=f"accept the terms at {subject.endpoint}/{subject.repository}, then: hf auth login",
    )


def _not_found(subject: Subject) -> HubError:
    return HubError(
        "repository-unknown",
        f"{subject.repository} does not exist at {subject.endpoint}, or it is private",
        found="the token gives no access to it" if subject.token else "no token was sent",
        hint="look at the spelling; for a private repository: hf auth login, or --token-file FILE",
    )


def _refused(subject: Subject, found: str) -> HubError:
    return HubError(
        "hub-refused",
        f"{subject.endpoint} refuses to give {subject.text}",
        found=hide_token(found, subject.token),
        hint=f"look at {subject.endpoint}/{subject.repository}, and whether the token has read access",
    )
