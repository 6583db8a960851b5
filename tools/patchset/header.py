"""The five fields at the head of a patch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from patchset.fault import Fault

FIELDS = ("Subject", "Why", "Upstream-Status", "Applies-To", "Drop-When")
_SUBJECT_LENGTH = 72
_FIELD = re.compile(r"(?P<name>[A-Z][A-Za-z-]*):(?: (?P<value>.*))?$")
#: Words of OpenEmbedded's Upstream-Status that our own diffs can have, and what has to follow in brackets.
_STATUS = re.compile(
    r"(?:Pending|(?:Backport|Submitted) \[[\w.-]+/[\w.-]+(?:#\d+)?[^\]]*\]|Inappropriate \[[^\]]+\])(?:$|[,; ])"
)
_CONDITION = re.compile(r'(?P<file>[\w./-]+) has (?P<text>"(?:[^"\\]|\\.)+")')
_EVIDENCE = re.compile(r"\b(?:tests|docs)/[\w./-]+\.(?:py|md)\b")


@dataclass(frozen=True)
class Condition:
    """Holds in a tree whose `file` contains `text`."""

    file: str
    text: str

    def holds(self, tree: Path) -> bool:
        """Whether the file is there and has the text."""
        path = tree / self.file
        return path.is_file() and self.text in path.read_text(encoding="utf-8", errors="surrogateescape")

    def __str__(self) -> str:
        return f"{self.file} has {json.dumps(self.text)}"


@dataclass(frozen=True)
class Header:
    """Fields by name, and what Drop-When says to a program."""

    fields: dict[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


def parse(name: str, lines: list[str], pin: str, root: Path | None) -> tuple[Header, list[Fault]]:
    """Header of the patch `name` from the lines before its diff.

    `pin` is what Applies-To has to name, `root` the folder of the files that Drop-When names; None does not ask for
    them.
    """
    order, fields = _fields(lines)
    faults: list[Fault] = []

    def fault(id: str, what: str, expected: str, found: str) -> None:
        faults.append(Fault(id, name, what, expected, found))

    if order != list(FIELDS):
        fault("header-fields", "fields are missing, double or in another order", ", ".join(FIELDS), ", ".join(order))
    for field_name, value in fields.items():
        if not value:
            fault("header-empty", f"{field_name} says nothing", "a sentence", "nothing")
    subject = fields.get("Subject", "")
    if len(subject) > _SUBJECT_LENGTH or subject.endswith("."):
        fault("header-subject", "Subject is no title", f"at most {_SUBJECT_LENGTH} characters, no full stop", subject)
    if not _STATUS.match(status := fields.get("Upstream-Status", "")):
        expected = "Pending, Backport [owner/repo#N], Submitted [owner/repo#N] or Inappropriate [reason]"
        fault("header-status", "Upstream-Status is no such word", expected, status)
    if pin not in (applies := fields.get("Applies-To", "")):
        fault("header-revision", "Applies-To does not name the pinned revision", pin, applies)
    conditions, rest = _conditions(fields.get("Drop-When", ""))
    if not conditions:
        fault("header-drop", "Drop-When has no condition", 'FILE has "TEXT"', fields.get("Drop-When", ""))
    evidence = _EVIDENCE.findall(rest)
    for missing in [one for one in evidence if root is not None and not (root / one).is_file()]:
        fault("header-evidence", "Drop-When names a file that is not there", "a test or a document", missing)
    if not evidence:
        fault(
            "header-evidence", "Drop-When names nothing that shows the defect", "a test or a document", rest or "none"
        )
    return Header(fields, conditions), faults


def _fields(lines: list[str]) -> tuple[list[str], dict[str, str]]:
    order: list[str] = []
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(" ") and order:
            fields[order[-1]] = f"{fields[order[-1]]} {line.strip()}".strip()
        elif match := _FIELD.match(line):
            order.append(match["name"])
            fields[match["name"]] = (match["value"] or "").strip()
        elif line.strip():
            order.append(f"({line.strip()[:40]})")
            fields.setdefault(order[-1], line.strip())
    return order, fields


def _conditions(value: str) -> tuple[tuple[Condition, ...], str]:
    """Conditions at the start of Drop-When, separated by `or`, and what follows them."""
    conditions: list[Condition] = []
    place = 0
    while match := _CONDITION.match(value, place):
        conditions.append(Condition(match["file"], json.loads(match["text"])))
        place = match.end()
        if not value.startswith(" or ", place):
            break
        place += len(" or ")
    return tuple(conditions), value[place:]
