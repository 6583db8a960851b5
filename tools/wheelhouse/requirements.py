"""Print what a runtime downloads as a requirements file of pip: requirements.py {upstream,fork,demo} [--system SYSTEM]

Each line names one version and the hash of one wheel, so that pip takes that file or stops. Nothing is left to be
resolved: install it with `--no-deps --require-hashes`.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOCKS = Path(__file__).parents[2] / "nix" / "locks"
Entries = Mapping[str, Mapping[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=sorted(path.stem for path in LOCKS.glob("*.json")))
    parser.add_argument("--system", default="aarch64-linux", help="default: aarch64-linux")
    options = parser.parse_args(arguments)
    lock = json.loads((LOCKS / f"{options.runtime}.json").read_text(encoding="utf-8"))
    try:
        sys.stdout.write(requirements(lock, entries(lock, options.system)))
    except KeyError as error:
        print(error.args[0], file=sys.stderr)
        return 1
    return 0


def entries(lock: Mapping[str, Any], system: str) -> Entries:
    """What is installed on a system, by normalised name; without what only a build needs.

    Raises:
        KeyError: the lock is for other systems; the argument is the message.
    """
    if system not in lock["systems"]:
        raise KeyError(
            f"error: system-unknown: the lock of {lock['runtime']} has no wheels for {system}\n"
            f"  expected: {' or '.join(lock['systems'])}\n\nhint: --system {next(iter(lock['systems']))}"
        )
    return {name: entry for name, entry in lock["systems"][system].items() if not entry.get("build_only")}


def requirements(lock: Mapping[str, Any], chosen: Entries) -> str:
    """A requirements file of pip with the hash of each wheel."""
    size = sum(entry["size"] for entry in chosen.values())
    lines = [
        f"# {len(chosen)} wheels of the runtime `{lock['runtime']}` for {lock['python']}, {size:,} bytes.",
        "--only-binary :all:",
    ]
    for name, entry in sorted(chosen.items()):
        digest = base64.b64decode(entry["hash"].removeprefix("sha256-")).hex()
        lines.append(f"{name}=={entry['version']} --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
