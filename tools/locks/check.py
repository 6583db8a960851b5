"""Check nix/locks/*.json against pins.json, their requirements and themselves: one line a fault, exit 1 if any.

Needs Python 3.11 and packaging, no network.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lock_faults import Fault, by_hardness, lock_faults
from pin_faults import shape_faults, unused_faults
from runtime_files import ROOT, RUNTIMES, read


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What json makes of an object, where it would keep only the last of two equal keys.

    Raises:
        ValueError: two keys are equal.
    """
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} is there twice")
    return result


def load(path: Path) -> Any:
    """A JSON file in which no key stands twice.

    Raises:
        SystemExit: it is missing, is no JSON, or has a key twice.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates)
    except (OSError, ValueError) as fault:
        raise SystemExit(f"{path}: {fault}") from fault


def all_faults(root: Path) -> list[Fault]:
    """Everything that is wrong in the repository at `root`, hardest first."""
    pins = load(root / "python/src/glm53_exl3/pins.json")
    locks = {runtime: load(root / f"nix/locks/{runtime}.json") for runtime in RUNTIMES}
    found = [*shape_faults(pins), *unused_faults(pins, locks.values())]
    for runtime, lock in locks.items():
        found += lock_faults(lock, pins, read(runtime, root))
    return by_hardness(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="check.py", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    found = all_faults(parser.parse_args(arguments).root)
    for fault in found:
        print(f"{fault.kind}: {fault.text}")
    if not found:
        print(f"the locks of {', '.join(RUNTIMES)} agree with pins.json and are complete")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
