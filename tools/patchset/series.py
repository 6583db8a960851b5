"""A folder of patches and the file `series` that lists them in the order of application."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from patchset import diff, header
from patchset.diff import Hunk
from patchset.fault import Fault
from patchset.header import Header

_NAME = re.compile(r"(?P<number>\d{4})-[a-z0-9]+(?:-[a-z0-9]+)+\.patch")


@dataclass(frozen=True)
class Patch:
    """One file of the folder."""

    name: str
    header: Header
    hunks: tuple[Hunk, ...]


def read(folder: Path, pin: str, evidence_root: Path | None) -> tuple[list[Patch], list[Fault]]:
    """The patches of a folder in the order of its series, and everything that is wrong with them.

    `pin` and `evidence_root` are those of `header.parse`.
    """
    if not (folder / "series").is_file():
        what = "no file that lists the patches"
        return [], [Fault("series-missing", str(folder), what, "a folder with patches and a file `series`", "none")]
    entries = _listed(folder)
    patches: list[Patch] = []
    faults = _series_faults(folder, entries)
    for name in dict.fromkeys(name for _, name in entries):
        if (folder / name).is_file():
            if (text := _text(folder / name)) is None:
                faults.append(Fault("patch-encoding", name, "it is no text", "UTF-8", "other bytes"))
                continue
            patch, further = _read_patch(folder / name, text, pin, evidence_root)
            patches.append(patch)
            faults += further
    return patches, faults


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None


def _read_patch(path: Path, text: str, pin: str, evidence_root: Path | None) -> tuple[Patch, list[Fault]]:
    lines = text.removesuffix("\n").split("\n")
    end = next((index for index, line in enumerate(lines) if not line.strip() or line.startswith("--- ")), len(lines))
    fields, faults = header.parse(path.name, lines[:end], pin, evidence_root)
    hunks, further = diff.parse(path.name, lines[end:], end + 1)
    if end == len(lines) or lines[end].strip():
        where = f"{path.name}:{min(end + 1, len(lines))}"
        further.append(Fault("header-end", where, "no blank line ends the header", "one, then the diff", "none"))
    if "\r" in text:
        what = "a line ends in a carriage return"
        further.append(Fault("patch-lines", path.name, what, "newlines alone", "carriage returns"))
    return Patch(path.name, fields, tuple(hunks)), faults + further


def _listed(folder: Path) -> list[tuple[int, str]]:
    """Line and name of each entry, as nix/series.nix reads them."""
    lines = (folder / "series").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    stripped = [(number, line.rstrip(" \t\r")) for number, line in enumerate(lines, start=1)]
    return [(number, line) for number, line in stripped if line and not line.startswith("#")]


def _series_faults(folder: Path, entries: list[tuple[int, str]]) -> list[Fault]:
    names = [name for _, name in entries]
    present = sorted(path.name for path in folder.glob("*.patch"))
    faults = [
        Fault("series-unlisted", name, "the series does not list it", "a line for each patch", "none")
        for name in present
        if name not in names
    ]
    highest = ""
    for index, (line, name) in enumerate(entries):
        where = f"series:{line}"
        match = _NAME.fullmatch(name)
        if name in names[:index]:
            faults.append(Fault("series-repeated", where, "a patch is listed twice", "each once", name))
        elif name not in present:
            faults.append(Fault("series-absent", where, "no such file", "the name of a file beside it", name))
        elif match is None:
            faults.append(Fault("series-name", where, "the name has another form", "NNNN-verb-object.patch", name))
        elif match["number"] <= highest:
            faults.append(Fault("series-order", where, "numbers do not ascend", f"a number above {highest}", name))
        highest = max(highest, match["number"] if match else "")
    return faults
