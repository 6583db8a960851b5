"""All runs of a load, read by several threads, shard after shard."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from glm53_exl3.engine.read_plan import Run
from glm53_exl3.engine.read_targets import Part
from glm53_exl3.engine.reader import RunReader
from glm53_exl3.engine.transfer import Transfer
from glm53_exl3.pack.files import open_file
from glm53_exl3.pack.safetensors_header import start_of_data


class Shards:
    """Open shards, each closed when its last run was read. Not thread-safe by itself.

    Args:
        runs: all runs.
        drop: whether a shard that was read to its end leaves the page cache.
    """

    def __init__(self, runs: Sequence[Run], drop: bool) -> None:
        self._left = Counter(run.shard for run in runs)
        self._drop = drop
        self._open: dict[Path, tuple[int, int]] = {}

    def open(self, shard: Path) -> tuple[int, int]:
        """Descriptor of a shard, and where its data begin.

        Raises:
            PackError: `file-missing` or `file-unreadable`.
        """
        if shard not in self._open:
            descriptor, _ = open_file(shard)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            self._open[shard] = descriptor, start_of_data(descriptor)
        return self._open[shard]

    def announce(self, run: Run) -> None:
        """Let the kernel begin to read a run."""
        descriptor, base = self.open(run.shard)
        os.posix_fadvise(descriptor, base + run.start, run.num_bytes, os.POSIX_FADV_WILLNEED)

    def done(self, run: Run) -> None:
        """Note that a run was read."""
        self._left[run.shard] -= 1
        if not self._left[run.shard]:
            descriptor, _ = self._open.pop(run.shard)
            if self._drop:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def close(self) -> None:
        """Close what is open."""
        while self._open:
            os.close(self._open.popitem()[1][0])


class BulkRead:
    """Reads runs into parts, and finishes each part as soon as all of it is there.

    Args:
        parts: where pieces belong, by their number.
        runs: in the order in which to read them.
        count: takes the number of bytes of each run that was read, from several threads.
        make_transfer: maker of the way to the device; None when every part is in memory of the host.
        drop: whether shards leave the page cache once they are read.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        runs: Sequence[Run],
        count: Callable[[int], object],
        make_transfer: Callable[[], Transfer] | None = None,
        drop: bool = False,
    ) -> None:
        self._parts = parts
        self._runs = runs
        self._count = count
        self._make_transfer = make_transfer
        self._shards = Shards(runs, drop)
        self._lock = threading.Lock()
        self._stopped = False
        self._left: Counter[int] = Counter(piece.part for run in runs for piece in run.pieces)

    def run(self, readers: int) -> None:
        """Read everything.

        Args:
            readers: threads.

        Raises:
            PackError: a file cannot be read, or a tensor holds what it may not.
        """
        waiting = iter(range(len(self._runs)))
        with ThreadPoolExecutor(readers, thread_name_prefix="glm53-exl3-read") as pool:
            futures = [pool.submit(self._work, waiting, readers) for _ in range(readers)]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            finally:
                self._stopped = True
                pool.shutdown()
                self._shards.close()

    def _work(self, waiting: Iterator[int], readers: int) -> None:
        reader = RunReader(self._parts, self._runs, self._make_transfer)
        try:
            while (taken := self._take(waiting, readers)) is not None:
                run = taken[-1]
                reader.read(*taken)
                self._count(run.wanted_bytes)
                self._finish(run)
        finally:
            reader.drain()

    def _take(self, waiting: Iterator[int], ahead: int) -> tuple[int, int, Run] | None:
        with self._lock:
            number = None if self._stopped else next(waiting, None)
            if number is None:
                return None
            run = self._runs[number]
            for part in {piece.part for piece in run.pieces}:
                # Makes it, see there.
                _ = self._parts[part].host_bytes
            if number + ahead < len(self._runs):
                self._shards.announce(self._runs[number + ahead])
            return *self._shards.open(run.shard), run

    def _finish(self, run: Run) -> None:
        complete: list[Part] = []
        with self._lock:
            self._shards.done(run)
            for piece in run.pieces:
                self._left[piece.part] -= 1
                if not self._left[piece.part]:
                    complete.append(self._parts[piece.part])
        for part in complete:
            part.finish()
