"""What a fetch tells its user while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Reporter(Protocol):
    """Shows notes and progress. Both are called from several threads."""

    def note(self, text: str) -> None:
        """Show one sentence."""

    def progress(self, title: str, total_bytes: int, done_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show how far something is.

        Args:
            title: what is done.
            total_bytes: all there is to do.
            done_bytes: what was done before; it counts for how far, and not for how fast.

        Returns:
            On entry, a function to call with the number of bytes of each step.
        """
