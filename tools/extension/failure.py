"""How the build says what is wrong.

The package has a class of the same form. It is not imported here: the kernels take minutes to compile, and Nix compiles
them again whenever a file of this folder changes, which should not be when the package does.
"""

from __future__ import annotations


class BuildError(Exception):
    """A reason not to build, with a remedy.

    Args:
        id: kebab-case name, listed in docs/extension.md.
        what: one sentence with the value.
        expected: what would have been right; empty when `what` says it.
        found: what was there instead; empty when `what` says it.
        hint: a command to paste.
    """

    def __init__(self, id: str, what: str, *, expected: str = "", found: str = "", hint: str) -> None:
        self.id = id
        lines = [f"error: {id}: {what}"]
        lines += [f"  {label}: {text}" for label, text in (("expected", expected), ("found", found)) if text]
        super().__init__("\n".join([*lines, "", f"hint: {hint}"]))
