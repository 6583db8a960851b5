"""Memory of a process and everything below it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import psutil

_OWN = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def own_bytes(processes: Iterable[psutil.Process]) -> int:
    """Anonymous and shared memory of some processes, each page counted once among those that share it.

    Pages of files are left out: their share depends on who else has the same libraries open.
    """
    texts = [Path(f"/proc/{process.pid}/smaps_rollup").read_text() for process in processes]
    return sum(1024 * int(kib) for text in texts for kib in _OWN.findall(text))
