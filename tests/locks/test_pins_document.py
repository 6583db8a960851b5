"""docs/pins.md says of the locks what is in them."""

from __future__ import annotations

import json
import re

from packaging.requirements import Requirement
from runtime_files import ROOT, RUNTIMES, read

TEXT = (ROOT / "docs/pins.md").read_text(encoding="utf-8")


def test_the_sizes_are_those_of_the_locks() -> None:
    told = set(re.findall(r"^\| (\w+) \| (\S+-linux) \| (\d+) \| ([\d,]+) \|$", TEXT, re.MULTILINE))
    found = set()
    for runtime in RUNTIMES:
        lock = json.loads((ROOT / f"nix/locks/{runtime}.json").read_text(encoding="utf-8"))
        for system, locked in lock["systems"].items():
            size = sum(entry["size"] for entry in locked.values())
            found.add((runtime, system, str(len(locked)), f"{size:,}"))
    assert told == found


def test_the_exceptions_are_those_of_the_locks() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\w-]+) \| (`.+`) \| [^|]+ \|$", TEXT, re.MULTILINE)
    told = {(runtime, who, line) for runtime, who, cell in rows for line in re.findall(r"`([^`]+)`", cell)}
    found = {(r, e.distribution, str(Requirement(e.requires))) for r in RUNTIMES for e in read(r).exceptions}
    assert told == found
