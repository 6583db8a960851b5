"""Make the lock of a runtime from its requirements, the pins and the package index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from closure import roots, walk
from package_index import metadata, resolve, wheels_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from runtime_files import ROOT, RuntimeFile, read
from wheel_files import TARGETS, Target

PINS = ROOT / "python/src/glm53_exl3/pins.json"
#: What the CPU tests ran with; the locks keep to it where nothing speaks against it.
TESTED = ROOT / "tools/requirements/cpu.txt"


def lock_path(runtime: str, root: Path = ROOT) -> Path:
    """Where the lock of a runtime lies."""
    return root / "nix/locks" / f"{runtime}.json"


def tested_versions() -> dict[str, str]:
    """Versions of the CPU environment by normalised name."""
    lines = TESTED.read_text(encoding="utf-8").splitlines()
    found = (re.match(r"([\w.-]+)==([^;\s]+)", line) for line in lines)
    return {canonicalize_name(match[1]): match[2] for match in found if match}


def constraints(pins: Mapping[str, Any]) -> list[str]:
    """The pins that hold for every runtime, as requirements; those with two versions are stated by runtime."""
    once = {name: list(versions) for name, versions in pins["wheels"].items() if len(versions) == 1}
    return [f"{name}=={versions[0]}" for name, versions in once.items() if name != "exllamav3"]


def overrides(file: RuntimeFile) -> list[str]:
    """What makes uv pass over the exceptions: a stated requirement stands, or the name is dropped."""
    lines = {}
    for exempt in file.exceptions:
        name = canonicalize_name(Requirement(exempt.requires).name)
        stated = [
            line.requirement
            for line in file.stated
            if canonicalize_name(Requirement(line.requirement).name) == name
            and not exempt.covers(exempt.distribution, Requirement(line.requirement))
        ]
        lines[name] = stated or [f"{name}; python_version < '0'"]
    return [line for group in lines.values() for line in group]


def _kept_versions(runtime: str, target: Target, upgrade: bool) -> dict[str, str]:
    path = lock_path(runtime)
    if upgrade or not path.exists():
        return tested_versions()
    systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
    locked = {name: entry["version"] for name, entry in systems.get(target.system, {}).items()}
    return {**locked, **tested_versions()}


def closure_of(file: RuntimeFile, target: Target, pins: Mapping[str, Any], upgrade: bool) -> dict[str, Any]:
    """The locked distributions of one system by normalised name.

    Raises:
        SystemExit: uv and our own walk over the METADATA disagree on the closure.
    """
    start = roots(file.stated, file.exceptions, target)
    lines = [line.requirement for line in start]
    kept = _kept_versions(file.runtime, target, upgrade)
    versions = resolve(lines, target, constraints(pins), overrides(file), kept)
    listed = wheels_of(versions, target)
    with ThreadPoolExecutor(4) as pool:
        texts = dict(zip(listed, pool.map(metadata, listed.values()), strict=True))
    members = walk(start, file.exceptions, target, lambda name: texts[name].requires_dist or [])
    if set(members) != set(listed):
        odd = sorted(set(members) ^ set(listed))
        raise SystemExit(f"{file.runtime}, {target.system}: only uv or only the walk has {odd}")
    locked = {}
    for name, member in sorted(members.items()):
        wheel = listed[name].wheel
        entry: dict[str, Any] = {"version": wheel.version, **wheel.entry()}
        entry["size"] = listed[name].size
        if member.extras:
            entry["extras"] = sorted(member.extras)
        if member.build_only:
            entry["build_only"] = True
        locked[name] = {**entry, "requires": member.requires}
    return locked


def make_lock(runtime: str, upgrade: bool = False) -> dict[str, Any]:
    """The lock of a runtime, made anew.

    Args:
        upgrade: take the newest versions instead of those that are locked.
    """
    file = read(runtime)
    pins = json.loads(PINS.read_text(encoding="utf-8"))
    return {
        "runtime": runtime,
        "python": "cp312",
        "requirements": [line.entry() for line in file.stated],
        "exceptions": [exempt.entry() for exempt in file.exceptions],
        "systems": {s: closure_of(file, TARGETS[s], pins, upgrade) for s in file.systems},
    }


def write_lock(lock: Mapping[str, Any], path: Path) -> None:
    """Write a lock so that a change of one distribution is a change of few lines."""
    path.write_text(json.dumps(lock, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
