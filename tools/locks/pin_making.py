"""Fill in the wheels of pins.json: their tags and hashes, from versions that are already there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from package_index import wheels_of
from wheel_files import TARGETS, Pinned

OPENING = '  "wheels": {\n'
CLOSING = "\n  }"


def _rounds(wheels: Pinned) -> Iterator[tuple[str, dict[str, str]]]:
    """What to ask the index for: a system, and at most one version of each name."""
    asked: dict[str, list[dict[str, str]]] = {}
    for name, versions in wheels.items():
        for version, systems in versions.items():
            for system in systems:
                rounds = asked.setdefault("aarch64-linux" if system == "any" else system, [])
                free = next((one for one in rounds if name not in one), None)
                if free is None:
                    rounds.append({name: version})
                else:
                    free[name] = version
    for system, rounds in asked.items():
        yield from ((system, one) for one in rounds)


def refreshed(wheels: Pinned) -> dict[str, Any]:
    """The `wheels` of pins.json as the index has them now.

    Args:
        wheels: those of pins.json, of which only names, versions and systems are looked at.

    Raises:
        SystemExit: a wheel for any machine is pinned for one, or the other way round.
    """
    found = {
        (system, name, versions[name]): listed.wheel
        for system, versions in _rounds(wheels)
        for name, listed in wheels_of(versions, TARGETS[system]).items()
    }
    result: dict[str, Any] = {}
    for name, versions in sorted(wheels.items()):
        for version, systems in versions.items():
            for system in systems:
                wheel = found["aarch64-linux" if system == "any" else system, name, version]
                if (system == "any") != (wheel.platform == "any"):
                    raise SystemExit(f"{wheel.filename} is pinned for {system}")
                result.setdefault(name, {}).setdefault(version, {})[system] = wheel.entry()
    return result


def written(text: str, wheels: Pinned) -> str:
    """The text of pins.json with other wheels; every other line stays as it is.

    Raises:
        ValueError: the text has no wheels.
    """
    before, opening, rest = text.partition(OPENING)
    _, closing, after = rest.partition(CLOSING)
    if not (opening and closing):
        raise ValueError("pins.json: no line '\"wheels\": {'")
    blocks = []
    for name, versions in wheels.items():
        for_versions = []
        for version, systems in versions.items():
            lines = ",\n".join(f"        {json.dumps(s)}: {json.dumps(e)}" for s, e in systems.items())
            for_versions.append(f"      {json.dumps(version)}: {{\n{lines}\n      }}")
        blocks.append(f"    {json.dumps(name)}: {{\n" + ",\n".join(for_versions) + "\n    }")
    return before + opening + ",\n".join(blocks) + closing + after


def refresh_pins(path: Path) -> None:
    """Write the wheels of the file at `path` anew."""
    text = path.read_text(encoding="utf-8")
    path.write_text(written(text, refreshed(json.loads(text)["wheels"])), encoding="utf-8")
