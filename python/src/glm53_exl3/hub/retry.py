"""How often and how patiently a request is made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from glm53_exl3.hub.errors import HubError, TransientError
from glm53_exl3.hub.units import in_time

_T = TypeVar("_T")


@dataclass(frozen=True)
class RetryPolicy:
    """When to give up.

    Attributes:
        attempts: failures in a row, without a byte of progress between them, that end it.
        first_wait_seconds: after the first failure; it doubles after each further one.
        longest_wait_seconds: where doubling ends.
        longest_asked_seconds: longest wait that a server may ask for.
    """

    attempts: int = 6
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 30.0
    longest_asked_seconds: float = 900.0

    def wait_seconds(self, failures: int, asked: float | None) -> float | None:
        """How long to wait after so many failures in a row; None to give up."""
        if failures >= self.attempts or (asked is not None and asked > self.longest_asked_seconds):
            return None
        if asked is not None:
            return asked
        return min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** (failures - 1))


class Attempts:
    """Counts failures of one request and waits between them.

    Args:
        policy: when to give up.
        wait: sleeps for so many seconds, or raises to end everything.
        note: told why and how long it waits.
    """

    def __init__(self, policy: RetryPolicy, wait: Callable[[float], object], note: Callable[[str], object]) -> None:
        self._policy = policy
        self._wait = wait
        self._note = note
        self._failures = 0

    def progressed(self) -> None:
        """The last attempt brought something, so counting starts over."""
        self._failures = 0

    def failed(self, failure: TransientError) -> None:
        """Wait before the next attempt.

        Raises:
            HubError: no attempt is left, or the server asks for too long a wait.
        """
        self._failures += 1
        seconds = self._policy.wait_seconds(self._failures, failure.asked_seconds)
        cause = failure.failure
        if seconds is None:
            raise _given_up(cause, self._failures, failure.asked_seconds)
        found = f" ({cause.found})" if cause.found else ""
        self._note(f"{cause.what}{found}; attempt {self._failures + 1} in {seconds:.0f} s")
        self._wait(seconds)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function until it succeeds.

        Raises:
            HubError: no attempt is left.
        """
        while True:
            try:
                return function()
            except TransientError as failure:
                self.failed(failure)


def _given_up(cause: HubError, failures: int, asked: float | None) -> HubError:
    found = f"{cause.found or 'no answer'}, {failures} time{'s' if failures > 1 else ''} in a row"
    if asked is not None:
        found += f", asking to wait {in_time(asked)}"
    return HubError(cause.id, cause.what, expected=cause.expected, found=found, hint=cause.hint)
