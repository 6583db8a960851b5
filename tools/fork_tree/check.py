"""Compare a tree of the vLLM fork with what is pinned for building it.

    check.py TREE --pins pins.json --lock nix/locks/fork.json [--build-tool NAME=VERSION ...] [--only sources]

The tree of the fork could not be read when pins and lock were made, so this runs before anything is compiled. Exits
with 1 and one line for each difference: the file that asks, what it asks for, what is pinned, what to change. Lines
that begin with `note:` are differences on purpose. Needs Python 3.11 and `packaging`, no network.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from compare import Difference, build_differences, requirement_differences, source_differences


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    options = _options(arguments)
    pins = json.loads(options.pins.read_text(encoding="utf-8"))
    differences: list[Difference] = source_differences(options.tree, pins["sources"])
    if options.only != "sources":
        lock = json.loads(options.lock.read_text(encoding="utf-8"))
        overridden = {"flashinfer-python": pins["runtimes"]["fork"]["flashinfer_python"]}
        further, notes = requirement_differences(options.tree, lock, overridden)
        differences += further + build_differences(options.tree, lock, dict(options.build_tool))
        for note in notes:
            print(f"note: {note}")
    for difference in differences:
        print(difference)
    if differences:
        revision = pins["runtimes"]["fork"]["vllm"]["revision"]
        print(
            f"error: fork-tree-differs: the vLLM tree in {options.tree} asks for other things than are pinned\n"
            f"  expected: no difference from the pins of {revision[:9]}\n  found: {len(differences)}, listed above\n\n"
            "hint: nix run .#serve-upstream",
            file=sys.stderr,
        )
    return 1 if differences else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--pins", type=Path, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--build-tool", type=_named_version, action="append", default=[], metavar="NAME=VERSION")
    parser.add_argument("--only", choices=["sources"], help="leave out requirements")
    return parser.parse_args(arguments)


def _named_version(text: str) -> tuple[str, str]:
    name, equals, version = text.partition("=")
    if not equals or not name or not version:
        raise argparse.ArgumentTypeError(f"`{text}` is not NAME=VERSION")
    return name, version


if __name__ == "__main__":
    sys.exit(main())
