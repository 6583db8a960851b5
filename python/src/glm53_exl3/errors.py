"""Typed errors: an id, what was found, what was expected, and a command that fixes it.

Every refusal a user can meet is a :class:`Glm53Error`. The command line prints it as::

    error: <id>: <what>
      expected: <expected>
      found: <found>

    hint: <hint>

and exits with :attr:`Glm53Error.exit_code`; it never prints a traceback for one.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """Exit codes of every command except `serve`, whose codes are described in docs/errors.md."""

    OK = 0
    FIXABLE = 1
    USAGE = 2
    BUG = 3


class Glm53Error(Exception):
    """A problem with a name and a remedy.

    Args:
        id: kebab-case name, stable across releases.
        what: one sentence with the offending name and value.
        expected: what would have been right; empty when `what` says it.
        found: what was there instead; empty when `what` says it.
        hint: what to do, preferably a command to paste.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FIXABLE

    def __init__(self, id: str, what: str, *, expected: str = "", found: str = "", hint: str = "") -> None:
        self.id = id
        self.what = what
        self.expected = expected
        self.found = found
        self.hint = hint
        super().__init__(self.render())

    def render(self) -> str:
        """The message as printed on standard error."""
        lines = [f"error: {self.id}: {self.what}"]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.found:
            lines.append(f"  found: {self.found}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        # vLLM hands errors between processes by pickle; the default would call __init__ with the rendered text.
        return (_rebuild, (type(self), self.id, self.what, self.expected, self.found, self.hint))


def _rebuild(cls: type[Glm53Error], id: str, what: str, expected: str, found: str, hint: str) -> Glm53Error:
    return cls(id, what, expected=expected, found=found, hint=hint)


class FormatError(Glm53Error):
    """A tensor or a setting is not EXL3 as this project reads it."""


class PackError(Glm53Error):
    """A pack on disk is incomplete, contradictory or not EXL3."""


class KernelError(Glm53Error):
    """A kernel backend cannot run what it was asked to run."""


class ServerError(Glm53Error):
    """The server did not start, stopped, or answered wrongly."""


class PlanError(Glm53Error):
    """A memory plan cannot be made, or what was asked for does not fit."""


class CanaryError(Glm53Error):
    """A server that has started does not compute what it should."""


class SettingError(Glm53Error):
    """A setting of `serve` that does not exist, has a wrong value, or breaks a rule."""
