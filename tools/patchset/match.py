"""Whether a hunk fits the lines of a file: by text that occurs once, not by line numbers.

Old text is context and removed lines, new text is context and added lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from patchset.diff import Hunk

APPLIES, THERE, MISMATCH = "applies", "there", "mismatch"


@dataclass(frozen=True)
class Match:
    """State of a hunk in a file; `at` is where its old or new text begins, from 0, `why` the reason of a mismatch."""

    state: str
    at: int = -1
    why: str = ""


def split_lines(text: str) -> list[str]:
    """Lines with their newline; the last one has none where the text does not end in one."""
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])


def match(hunk: Hunk, lines: Sequence[str]) -> Match:
    """The state of one hunk.

    Where a hunk only inserts, its new text contains the old one, and where it only removes, the other way round: an
    occurrence inside the other text does not count. Both texts side by side leave open which of them is meant.
    """
    old, new = split_lines(hunk.old), split_lines(hunk.new)
    old_at, new_at = occurrences(old, lines), occurrences(new, lines)
    undone = [at for at in old_at if not _within(at, old, new_at, new)]
    done = [at for at in new_at if not _within(at, new, old_at, old)]
    if done and undone:
        where = f"its old lines stand at line {undone[0] + 1}, its new ones at line {done[0] + 1}"
        return Match(MISMATCH, why=f"{where}; more context would tell them apart")
    if done:
        return Match(THERE, done[0])
    if len(old_at) == 1:
        return Match(APPLIES, old_at[0])
    if old_at:
        places = ", ".join(str(at + 1) for at in old_at)
        return Match(MISMATCH, why=f"its old lines stand {len(old_at)} times in the file, at lines {places}")
    return Match(MISMATCH, why=_closest(old, lines))


def occurrences(part: Sequence[str], lines: Sequence[str]) -> list[int]:
    """Where consecutive lines begin, from 0; nowhere for no lines."""
    wanted, last = list(part), len(lines) - len(part)
    if not wanted:
        return []
    return [at for at in range(last + 1) if lines[at] == wanted[0] and list(lines[at : at + len(wanted)]) == wanted]


def _within(at: int, part: Sequence[str], others: Sequence[int], other: Sequence[str]) -> bool:
    return len(other) > len(part) and any(one <= at and at + len(part) <= one + len(other) for one in others)


def _closest(old: Sequence[str], lines: Sequence[str]) -> str:
    """The place where most lines stand as they should, and the first line there that differs."""
    places: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        if line.strip():
            places.setdefault(line, []).append(at)
    votes = Counter(at - index for index, line in enumerate(old) for at in places.get(line, ()) if at >= index)
    if not votes:
        first = next((line for line in old if line.strip()), "")
        return f"the file has none of its old lines; the first is {first.strip()!r}"
    most = max(votes.values())
    start = min(at for at, count in votes.items() if count == most)
    index = next(index for index, line in enumerate(old) if lines[start + index : start + index + 1] != [line])
    found = repr(lines[start + index].strip()) if start + index < len(lines) else "the end of the file"
    place = f"closest is line {start + 1}; there line {start + index + 1} should be {old[index].strip()!r}"
    return f"{place} and is {found}"
