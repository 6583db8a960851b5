"""Why a download is refused, stopped or worth another attempt."""

from __future__ import annotations

from glm53_exl3.errors import Glm53Error


class HubError(Glm53Error):
    """A pack cannot be fetched as asked."""


class TransientError(Exception):
    """A failure that another attempt may not meet.

    Args:
        failure: what to raise when no attempt is left.
        asked_seconds: how long the server asked to wait; None when it did not say.
    """

    def __init__(self, failure: HubError, asked_seconds: float | None = None) -> None:
        self.failure = failure
        self.asked_seconds = asked_seconds
        super().__init__(failure.what)


class StoppedError(Exception):
    """Another thread asked this one to stop; what it has written so far stays."""
