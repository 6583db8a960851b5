"""Which processes live."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil


def family(pid: int) -> list[psutil.Process]:
    """A process and everything below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def survivors(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after so many seconds. A zombie is dead and waits for init to notice."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def session_members(session: int) -> list[str]:
    """Command lines of the living processes of a session. One without any has been killed and gives back its memory."""
    members: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            command = (stat.parent / "cmdline").read_text().replace("\0", " ")
            if int(its_session) == session and state != "Z" and command:
                members.append(command)
        except (OSError, ValueError):
            continue
    return members
