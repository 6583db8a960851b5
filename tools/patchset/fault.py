"""What is wrong with a patch, its header or its place in the series."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One finding; `where` is a file and, if known, a line of it."""

    id: str
    where: str
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"error: {self.id}: {self.where}: {self.what}\n  expected: {self.expected}\n  found: {self.found}"
