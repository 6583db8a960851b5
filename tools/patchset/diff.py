"""Unified diffs, as far as our patches use them: changed files, no new, deleted or renamed ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from patchset.fault import Fault

_MAX_CONTEXT = 3
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    """A change of one place: `old` and `new` text with their context, and the line where the patch was made."""

    file: str
    number: int
    line: int
    old: str
    new: str


class _Reader:
    def __init__(self, name: str, first_line: int) -> None:
        self.name, self.first_line = name, first_line
        self.hunks: list[Hunk] = []
        self.faults: list[Fault] = []

    def fault(self, line: int, id: str, what: str, expected: str, found: str) -> None:
        self.faults.append(Fault(id, f"{self.name}:{self.first_line + line}", what, expected, found))

    def path(self, lines: list[str], index: int) -> str:
        """The file of the two lines --- and +++."""
        after = lines[index + 1] if index + 1 < len(lines) else ""
        old, new = lines[index].removeprefix("--- ").split("\t")[0], after.removeprefix("+++ ").split("\t")[0]
        if not after.startswith("+++ ") or not old.startswith("a/") or old[2:] != new[2:] or not new.startswith("b/"):
            self.fault(index, "diff-file", "no changed file", "--- a/PATH and +++ b/PATH of one file", f"{old}, {new}")
        elif old.startswith("a//") or ".." in old.split("/"):
            self.fault(index, "diff-file", "leaves the tree", "a path inside", old)
        return old[2:]

    def hunk(self, lines: list[str], index: int, file: str) -> int:
        """Read the hunk that begins at `index`; the index behind it."""
        match = _HUNK.match(lines[index])
        if match is None:
            self.fault(index, "diff-hunk", "not a hunk", "@@ -N,N +N,N @@", lines[index])
            return index + 1
        start, old_count, _, new_count = (1 if one is None else int(one) for one in match.groups())
        end = index + 1
        while end < len(lines) and lines[end][:1] in {" ", "+", "-"} and not lines[end].startswith(("--- ", "+++ ")):
            end += 1
        body = lines[index + 1 : end]
        old = [line[1:] for line in body if line[0] in " -"]
        new = [line[1:] for line in body if line[0] in " +"]
        if (len(old), len(new)) != (old_count, new_count):
            found = f"{len(old)} and {len(new)}"
            self.fault(index, "diff-count", "lines do not count up", f"{old_count} and {new_count}", found)
        self.body(index, body, old, new)
        number = 1 + sum(1 for hunk in self.hunks if hunk.file == file)
        self.hunks.append(Hunk(file, number, start, _text(old), _text(new)))
        return end

    def body(self, index: int, body: list[str], old: list[str], new: list[str]) -> None:
        """Whether the lines of the hunk say what changes and where, before and after it is applied."""
        changed = [place for place, line in enumerate(body) if line[0] != " "]
        if old == new:
            self.fault(index, "diff-hunk", "changes nothing", "a line that differs", "the same lines")
            return
        before, after = changed[0], len(body) - 1 - changed[-1]
        if max(before, after) > _MAX_CONTEXT:
            found = f"{before} before, {after} after"
            self.fault(index, "diff-context", "too much context", f"at most {_MAX_CONTEXT} lines", found)
        elif after < before:
            # patch(1) then looks at the end of the file only.
            expected = f"{before} lines after the change as before it, or fewer before"
            self.fault(index, "diff-context", "less context after than before", expected, str(after))
        if not old:
            self.fault(index, "diff-hunk", "has no place", "a line of the file", "additions alone")
        elif _is_part(new, old):
            self.fault(index, "diff-hunk", "cannot be told once applied", "context on both sides", "removals")


def _is_part(part: list[str], whole: list[str]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole) - len(part) + 1))


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def parse(name: str, lines: list[str], first_line: int) -> tuple[list[Hunk], list[Fault]]:
    """Hunks of a diff in order; `first_line` is where it begins in the patch `name`."""
    reader = _Reader(name, first_line)
    file, index = "", 0
    while index < len(lines):
        if lines[index].startswith("--- "):
            file = reader.path(lines, index)
            index += 2
        elif file and lines[index].startswith("@@"):
            index = reader.hunk(lines, index, file)
        else:
            if lines[index].strip():
                expected = "--- a/PATH, @@, or a line of a hunk"
                reader.fault(index, "diff-line", "belongs to no hunk", expected, lines[index])
            index += 1
    if not reader.hunks:
        reader.fault(0, "diff-empty", "no hunk", "a unified diff behind the header", "nothing")
    return reader.hunks, reader.faults
