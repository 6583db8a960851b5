"""What patches find in a tree: each hunk applies, is there already, or does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from patchset.diff import Hunk
from patchset.match import APPLIES, MISMATCH, THERE, Match, match, occurrences, split_lines
from patchset.series import Patch

#: Hunks by patch, file and number.
_Key = tuple[str, str, int]


@dataclass(frozen=True)
class HunkState:
    """State of one hunk; `line` is where it applies or is there, `why` the reason of a mismatch."""

    file: str
    hunk: int
    state: str
    line: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Report:
    """Verdict on one patch and its hunks; `reason` is the condition of Drop-When that holds, or an error."""

    patch: str
    verdict: str
    reason: str
    hunks: tuple[HunkState, ...]

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


class Tree:
    """Files of a tree as the patches leave them; nothing is written before `write`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: dict[str, str] = {}

    def text(self, file: str) -> str | None:
        """The file as it is by now; None where there is none. Ends of lines and odd bytes stay what they are."""
        if file in self.changed:
            return self.changed[file]
        path = self.root / file
        return path.read_bytes().decode("utf-8", "surrogateescape") if path.is_file() else None

    def write(self) -> None:
        """Replace the changed files by new ones: a tree may be made of hard links."""
        for file, text in self.changed.items():
            path = self.root / file
            fresh = path.with_name(f".{path.name}.patched")
            fresh.write_bytes(text.encode("utf-8", "surrogateescape"))
            fresh.chmod(path.stat().st_mode)
            fresh.replace(path)


def judge(patches: Sequence[Patch], tree: Tree) -> list[Report]:
    """Judge patches in order, each on the tree as those before leave it; one that does not fit changes nothing."""
    before = _there(patches, tree)
    reports = [_judge(patch, tree, before) for patch in patches]
    after = _there(patches, tree)
    return [_told_apart(report, after) if report.verdict == APPLIES else report for report in reports]


def _there(patches: Sequence[Patch], tree: Tree) -> set[_Key]:
    """Hunks whose lines are in the tree, found from the last patch to the first, each taken out again in memory.

    A patch may change lines that one before it made; without this the earlier one would no longer be recognized.
    """
    found: set[_Key] = set()
    older = Tree(tree.root)
    older.changed = dict(tree.changed)
    for patch in reversed(patches):
        for file, hunks in _by_file(patch.hunks).items():
            lines = split_lines(older.text(file) or "")
            matches = [(hunk, match(hunk, lines)) for hunk in hunks]
            there = [(hunk, one) for hunk, one in matches if one.state == THERE]
            found |= {(patch.name, file, hunk.number) for hunk, _ in there}
            again = [
                (one.at, hunk.new, hunk.old)
                for hunk, one in there
                if len(occurrences(split_lines(hunk.new), lines)) == 1
            ]
            if again:
                older.changed[file] = _spliced(lines, again)
    return found


def _judge(patch: Patch, tree: Tree, before: set[_Key]) -> Report:
    upstream = next((str(one) for one in patch.header.conditions if one.holds(tree.root)), "")
    changes: dict[str, str] = {}
    states: list[HunkState] = []
    for file, hunks in _by_file(patch.hunks).items():
        text = tree.text(file)
        lines = split_lines(text or "")
        matches = [_recognized(match(hunk, lines), (patch.name, file, hunk.number) in before) for hunk in hunks]
        matches = _in_order(hunks, matches)
        if text is None:
            matches = [Match(MISMATCH, why="the tree has no such file")] * len(hunks)
        states += [
            HunkState(file, hunk.number, one.state, one.at + 1 if one.at >= 0 else None, one.why)
            for hunk, one in zip(hunks, matches, strict=True)
        ]
        applied = [
            (one.at, hunk.old, hunk.new) for hunk, one in zip(hunks, matches, strict=True) if one.state == APPLIES
        ]
        if applied:
            changes[file] = _spliced(lines, applied)
    found = {state.state for state in states}
    if upstream or found == {THERE}:
        return Report(patch.name, THERE, upstream, tuple(states))
    reason = "" if MISMATCH in found else _compile_errors(changes)
    if MISMATCH in found or reason:
        return Report(patch.name, MISMATCH, reason, tuple(states))
    tree.changed |= changes
    return Report(patch.name, APPLIES, "", tuple(states))


def _by_file(hunks: Iterable[Hunk]) -> dict[str, list[Hunk]]:
    files: dict[str, list[Hunk]] = {}
    for hunk in hunks:
        files.setdefault(hunk.file, []).append(hunk)
    return files


def _recognized(found: Match, there: bool) -> Match:
    return Match(THERE) if there and found.state != THERE else found


def _in_order(hunks: Sequence[Hunk], matches: Sequence[Match]) -> list[Match]:
    """As patch(1) has it: a hunk applies behind the one above it, not before and not into it."""
    end, checked = 0, []
    for hunk, one in zip(hunks, matches, strict=True):
        if one.state == APPLIES and one.at < end:
            checked.append(
                Match(MISMATCH, why=f"its old lines stand at line {one.at + 1}, before the end of the hunk above")
            )
            continue
        if one.state == APPLIES:
            end = one.at + len(split_lines(hunk.old))
        checked.append(one)
    return checked


def _spliced(lines: Sequence[str], changes: Iterable[tuple[int, str, str]]) -> str:
    """The text with other lines at given places; from the end, so that places stay what they are."""
    result = list(lines)
    for at, old, new in sorted(changes, reverse=True):
        result[at : at + len(split_lines(old))] = split_lines(new)
    return "".join(result)


def _told_apart(report: Report, after: set[_Key]) -> Report:
    """A patch that would not be recognized once it is applied could be applied twice."""
    lost = [one for one in report.hunks if (report.patch, one.file, one.hunk) not in after]
    if not lost:
        return report
    reason = f"{lost[0].file} hunk {lost[0].hunk} would not be recognized once it is applied; it needs more context"
    return replace(report, verdict=MISMATCH, reason=reason)


def _compile_errors(files: dict[str, str]) -> str:
    """Why a patched file of Python is none any more; empty when all are."""
    for file, text in files.items():
        if file.endswith(".py"):
            try:
                with warnings.catch_warnings(action="ignore"):
                    compile(text, file, "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                line = getattr(error, "lineno", None)
                return f"{file} is no Python afterwards: {getattr(error, 'msg', error)}, line {line}"
    return ""
