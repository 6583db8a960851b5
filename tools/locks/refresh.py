"""Make nix/locks/RUNTIME.json anew, or the wheels of pins.json: see docs/pins.md.

Needs uv and packaging beside the interpreter, and a package index.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lock_making import PINS, lock_path, make_lock, write_lock
from pin_making import refresh_pins
from runtime_files import RUNTIMES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="refresh.py", description=__doc__)
    parser.add_argument("what", nargs="*", help="fork, upstream, demo, pins; default: every lock")
    parser.add_argument("--upgrade", action="store_true", help="do not keep the locked versions")
    chosen = parser.parse_args(arguments)
    for what in set(chosen.what) - {*RUNTIMES, "pins"}:
        parser.error(f"no lock is called {what}; there are {', '.join(RUNTIMES)}, and pins")
    for what in chosen.what or RUNTIMES:
        if what == "pins":
            refresh_pins(PINS)
            print(f"{PINS}: wheels")
        else:
            lock = make_lock(what, chosen.upgrade)
            write_lock(lock, lock_path(what))
            for system, locked in lock["systems"].items():
                size = sum(entry["size"] for entry in locked.values())
                print(f"{what} {system}: {len(locked)} wheels, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
