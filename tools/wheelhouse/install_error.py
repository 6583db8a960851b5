"""What the installer refuses, printed as the commands of this project print errors."""

from __future__ import annotations


class InstallError(Exception):
    """Something that the user can fix."""

    def __init__(self, identity: str, what: str, *, expected: str = "", found: str = "", hint: str = "") -> None:
        lines = [f"error: {identity}: {what}"]
        lines += [f"  expected: {expected}"] if expected else []
        lines += [f"  found: {found}"] if found else []
        lines += ["", f"hint: {hint}"] if hint else []
        super().__init__("\n".join(lines))


def listed(lines: list[str]) -> str:
    """Several findings, one below the other."""
    return "\n         ".join(lines)
