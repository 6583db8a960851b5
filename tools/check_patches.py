#!/usr/bin/env python3
"""Check the patches on the vLLM fork, against their rules and against a source tree.

Without --tree: headers, diffs and series (patches/README.md has the rules). With --tree DIR: for each patch of the
series, in order, whether it `applies`, is `there` already (all its lines are, or the condition of its Drop-When holds),
or is a `mismatch`; then every file that changes is compiled as Python. With --apply too the result is written, unless
something does not fit. DIR may be a checkout, an unpacked source archive, or a site-packages with an installed vLLM.

A hunk applies only where its old lines stand exactly once in the file: stricter than patch(1) without fuzz, so that
small hunks cannot land in a wrong place. Old and new lines both in the file, apart from each other, are a mismatch:
neither skipping the hunk nor applying it would be safe. A second --apply finds everything there, also where one patch
changed what another had made.

Exit codes: 0 all is well, 1 a fault or a mismatch, 2 wrong usage. Faults: series-*, header-*, diff-*, patch-lines; of a
tree: patch-does-not-apply, patch-unknown.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from patchset import judge, series
from patchset.judge import Report, Tree
from patchset.match import MISMATCH
from patchset.series import Patch

ROOT = Path(__file__).resolve().parents[1]
_HINT = "hint: nix run .#serve-upstream   # vLLM that needs none of these patches, until this one is remade"


def main() -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, help="source tree to judge the patches on")
    parser.add_argument("--apply", action="store_true", help="write the result into the tree")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATCH", help="a name or number; leave the others out"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON")
    parser.add_argument("--patches", type=Path, default=ROOT / "patches" / "vllm", help="folder with the series")
    parser.add_argument("--pins", type=Path, default=ROOT / "python" / "src" / "glm53_exl3" / "pins.json")
    parser.add_argument(
        "--without-evidence", action="store_true", help="do not ask for the tests and documents that headers name"
    )
    options = parser.parse_args()
    if options.apply and options.tree is None:
        parser.error("--apply needs --tree DIR")
    if options.tree is not None and not options.tree.is_dir():
        parser.error(f"{options.tree} is no folder")

    if not options.pins.is_file():
        parser.error(f"{options.pins} is no file")

    evidence_root = None if options.without_evidence else ROOT
    fork = json.loads(options.pins.read_text(encoding="utf-8"))["runtimes"]["fork"]["vllm"]
    patches, faults = series.read(options.patches, f"{fork['repository']} {fork['revision']}", evidence_root)
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        print("\nhint: patches/README.md has the rules", file=sys.stderr)
        return 1
    if unknown := sorted(one for one in set(options.only) if not chosen(patches, [one])):
        print(f"error: patch-unknown: the series has no {', '.join(unknown)}", file=sys.stderr)
        return 1
    if options.tree is None:
        print(f"{len(patches)} patches keep the rules")
        return 0
    return judge_tree(chosen(patches, options.only) if options.only else patches, options)


def chosen(patches: list[Patch], only: list[str]) -> list[Patch]:
    """The patches that are named, whole or by their number."""
    return [patch for patch in patches if patch.name in only or patch.name[:4] in only]


def judge_tree(patches: list[Patch], options: argparse.Namespace) -> int:
    """Report what the patches find in the tree, and write what they make of it if that was asked for."""
    tree = Tree(options.tree)
    reports = judge.judge(patches, tree)
    mismatches = [report for report in reports if report.verdict == MISMATCH]
    if options.apply and not mismatches:
        # Before anything is printed: a reader that leaves early must not decide whether the tree is patched.
        tree.write()
    if options.json:
        print(json.dumps([report.as_json() for report in reports], indent=1))
    else:
        for report in reports:
            print(describe(report))
    for report in mismatches:
        print(refusal(report, options.tree), file=sys.stderr)
    if mismatches:
        print(f"\n{_HINT}", file=sys.stderr)
        return 1
    return 0


def describe(report: Report) -> str:
    """A line for the patch, then one for each hunk."""
    lines = [f"{report.patch}: {report.verdict}" + (f" ({report.reason})" if report.reason else "")]
    for one in report.hunks:
        place = f" at line {one.line}" if one.line else ""
        lines.append(f"  {one.file} hunk {one.hunk}: {one.state}{place}{': ' if one.why else ''}{one.why}")
    return "\n".join(lines)


def refusal(report: Report, tree: Path) -> str:
    """The first hunk that does not fit, as an error."""
    broken = next((one for one in report.hunks if one.state == MISMATCH), None)
    found = f"{broken.file} hunk {broken.hunk}: {broken.why}" if broken else report.reason
    files = " ".join(dict.fromkeys(one.file for one in report.hunks))
    return (
        f"error: patch-does-not-apply: {report.patch} does not fit {tree}; it changes {files}\n"
        f"  expected: every hunk in its place, exactly once\n  found: {found}"
    )


if __name__ == "__main__":
    sys.exit(main())
