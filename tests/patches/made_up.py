"""Small patches and trees for the tests of tools/check_patches.py."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from patches.conftest import CHECK, ROOT

FORK = json.loads((ROOT / "python/src/glm53_exl3/pins.json").read_text())["runtimes"]["fork"]["vllm"]
PIN = f"{FORK['repository']} {FORK['revision']}"
HEADER = f"""Subject: greet otherwise
Why: greetings are
 short
Upstream-Status: Pending
Applies-To: {PIN}; checked on nothing
Drop-When: vllm/greeting.py has "bonjour"; tests/patches/test_check_patches.py passes without it

"""


def difference(path: str, before: str, after: str, context: int = 1) -> str:
    """What `diff -u` prints, made by Python's difflib."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context))


def write(folder: Path, **diffs: str) -> Path:
    """A folder with a patch for each diff, all listed: `p1_greet` becomes 0001-greet-otherwise.patch."""
    folder.mkdir(exist_ok=True)
    names = []
    for key, diff in diffs.items():
        number, _, word = key.removeprefix("p").partition("_")
        names.append(f"{int(number):04}-{word.replace('_', '-')}-otherwise.patch")
        (folder / names[-1]).write_text(HEADER + diff)
    (folder / "series").write_text("".join(f"{name}\n" for name in names))
    return folder


def check(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECK), "--patches", str(folder), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True)


def reports(folder: Path, tree: Path, *options: object) -> dict[str, dict[str, Any]]:
    """What the tool finds in a tree, by the number of the patch."""
    found = json.loads(check(folder, "--tree", tree, "--json", *options).stdout)
    return {one["patch"][:4]: one for one in found}


def verdicts(folder: Path, tree: Path, *options: object) -> dict[str, str]:
    return {number: one["verdict"] for number, one in reports(folder, tree, *options).items()}
