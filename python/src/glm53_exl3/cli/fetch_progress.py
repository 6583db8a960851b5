"""Progress of a fetch on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console

from glm53_exl3.hub.report import Reporter
from glm53_exl3.hub.units import in_bytes, in_time

_LINE_SECONDS: Final = 5.0
#: Over which the rate is averaged: stalls show soon and single pieces do not make it jump.
_WINDOW_SECONDS: Final = 30.0


class Meter:
    """How far, how fast and how long still.

    Args:
        total_bytes: all there is.
        done_bytes: what was there before; it does not count for the rate.
        clock: seconds, never going back.
    """

    def __init__(self, total_bytes: int, done_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = done_bytes
        self._clock = clock
        self._samples = deque([(clock(), done_bytes)])

    def add(self, num_bytes: int) -> None:
        """So many bytes more, or fewer when negative."""
        self.done_bytes += num_bytes
        now = self._clock()
        self._samples.append((now, self.done_bytes))
        while self._samples[0][0] < now - _WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float:
        """Over the last half minute; zero before the first bytes."""
        since, before = self._samples[0]
        seconds = self._clock() - since
        return max(0.0, (self.done_bytes - before) / seconds) if seconds > 0 else 0.0

    @property
    def line(self) -> str:
        """As one line."""
        rate = self.bytes_per_second
        left = self.total_bytes - self.done_bytes
        eta = f"{in_time(left / rate)} left" if rate > 0 else "time left unknown"
        percent = 100 * self.done_bytes // self.total_bytes if self.total_bytes else 100
        return f"{in_bytes(self.done_bytes)} of {in_bytes(self.total_bytes)} ({percent} %), {in_bytes(rate)}/s, {eta}"


class LineReporter:
    """One line at the beginning, every few seconds and at the end.

    Args:
        console: where to.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        """Show one sentence."""
        with self._lock:
            self._console.print(text, markup=False)

    @contextmanager
    def progress(self, title: str, total_bytes: int, done_bytes: int) -> Iterator[Callable[[int], None]]:
        """Show how far something is."""
        meter = Meter(total_bytes, done_bytes)
        printed = time.monotonic()
        self.note(f"{title}: {in_bytes(done_bytes)} of {in_bytes(total_bytes)}")

        def advance(num_bytes: int) -> None:
            nonlocal printed
            with self._lock:
                meter.add(num_bytes)
                line = meter.line if time.monotonic() - printed >= _LINE_SECONDS else ""
                if line:
                    printed = time.monotonic()
            if line:
                self.note(f"{title}: {line}")

        try:
            yield advance
        finally:
            self.note(f"{title}: {in_bytes(meter.done_bytes)} of {in_bytes(total_bytes)}")


class BarReporter:
    """A bar that is redrawn.

    Args:
        console: a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        """Show one sentence, above the bar."""
        self._console.print(text, markup=False)

    @contextmanager
    def progress(self, title: str, total_bytes: int, done_bytes: int) -> Iterator[Callable[[int], None]]:
        """Show how far something is."""
        from rich import progress as bars

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.DownloadColumn(binary_units=True),
            bars.TransferSpeedColumn(),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=self._console, speed_estimate_period=_WINDOW_SECONDS) as display:
            task = display.add_task(title, total=total_bytes, completed=done_bytes)
            yield lambda num_bytes: display.advance(task, num_bytes)


class QuietReporter:
    """Shows nothing; errors are printed all the same."""

    def note(self, text: str) -> None:
        """Show nothing."""

    @contextmanager
    def progress(self, title: str, total_bytes: int, done_bytes: int) -> Iterator[Callable[[int], None]]:
        """Show nothing."""
        yield lambda num_bytes: None


def reporter(console: Console, *, quiet: bool) -> Reporter:
    """What fits the console."""
    if quiet:
        return QuietReporter()
    return BarReporter(console) if console.is_terminal else LineReporter(console)
