"""Which processes belong to a session."""

from __future__ import annotations

from pathlib import Path


def session_members(session: int) -> list[str]:
    """Command lines of the living processes of a session."""
    members: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                members.append((stat.parent / "cmdline").read_text().replace("\0", " "))
        except (OSError, ValueError):
            continue
    return members
