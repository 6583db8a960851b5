"""The log lines of a load; docs/loading.md states them for whoever parses the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

GIB: Final = 1 << 30
#: Seconds between two lines.
INTERVAL_SECONDS: Final = 5.0


def progress_line(done_bytes: int, total_bytes: int, bytes_per_second: float) -> str:
    """The line of a load under way; the rate is that since the line before."""
    return f"loading weights: {done_bytes / GIB:.2f} of {total_bytes / GIB:.2f} GiB, {bytes_per_second / GIB:.2f} GiB/s"


def final_line(done_bytes: int, seconds: float) -> str:
    """The line at the end of a load; the rate is that of the whole."""
    rate = done_bytes / max(seconds, 1e-9) / GIB
    return f"loaded weights: {done_bytes} bytes in {seconds:.2f} s, {rate:.2f} GiB/s"


class LoadProgress:
    """Counts bytes, from any thread, and logs a line every few seconds.

    Args:
        log: takes a line.
        started: when the load began, by the clock; now by default.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        log: Callable[[str], object],
        started: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_bytes = 0
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._last_seconds = clock()
        self._started = self._last_seconds if started is None else started
        self._last_bytes = self._done_bytes = 0

    def expect(self, total_bytes: int) -> None:
        """State how many bytes are going to be counted."""
        self._total_bytes = total_bytes

    def add(self, num_bytes: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._done_bytes += num_bytes
            now = self._clock()
            passed = now - self._last_seconds
            if passed < INTERVAL_SECONDS:
                return
            rate = (self._done_bytes - self._last_bytes) / passed
            self._last_seconds, self._last_bytes = now, self._done_bytes
            self._log(progress_line(self._done_bytes, self._total_bytes, rate))

    def finish(self) -> None:
        """Log the last line."""
        with self._lock:
            self._log(final_line(self._done_bytes, self._clock() - self._started))
