"""What is wrong with a lock: against the pins, against its requirements, and in itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from closure import SOURCE_BUILT, Member, roots, walk
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from runtime_files import Exempt, RuntimeFile, Stated
from wheel_files import TARGETS, Target, Wheel, is_sri, pinned_wheels

#: Kinds of faults, hardest first: bytes that are not the pinned ones before a stale line.
KINDS = ("bytes", "form", "tags", "requirement", "stale")
Locked = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Fault:
    """One line of the check.

    Attributes:
        kind: one of `KINDS`.
        text: where and what, with the values.
    """

    kind: str
    text: str


def by_hardness(faults: Iterable[Fault]) -> list[Fault]:
    """The faults in the order they are to be shown in."""
    return sorted(faults, key=lambda fault: (KINDS.index(fault.kind), fault.text))


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def form_faults(where: str, locked: Locked, target: Target) -> Iterator[Fault]:
    """Names, versions, hashes and tags of the entries; a version is not looked at further if it is none."""
    for name, entry in locked.items():
        at = f"{where}: {name}"
        if canonicalize_name(name) != name:
            yield Fault("form", f"{at}: the name is not normalised, expected {canonicalize_name(name)}")
        wheel = Wheel.from_entry(entry["version"], entry)
        if wheel.name != canonicalize_name(name):
            yield Fault("form", f"{at}: the file is one of {wheel.name}: {wheel.filename}")
        if not _is_version(wheel.version):
            yield Fault("form", f"{at}: {wheel.version!r} is no version")
        if not is_sri(wheel.hash):
            yield Fault("form", f"{at}: {wheel.hash!r} is no SHA-256 in SRI form")
        if wheel.rank(target) is None:
            yield Fault("tags", f"{at}: {wheel.filename} cannot be installed on {target.system}")
    normalised = [canonicalize_name(name) for name in locked]
    for name in sorted({name for name in normalised if normalised.count(name) > 1}):
        yield Fault("form", f"{where}: {name} is there twice")


def pin_faults(where: str, runtime: str, locked: Locked, pins: Mapping[str, Any], system: str) -> Iterator[Fault]:
    """Entries that are not what pins.json has, and what torch needs of NVIDIA without a pin."""
    pinned = pinned_wheels(pins)
    expected = {name: pins[name] for name in ("torch", "torchvision", "triton")}
    if runtime in pins["runtimes"]:
        expected["flashinfer-python"] = pins["runtimes"][runtime]["flashinfer_python"]
        expected["vllm"] = pins["runtimes"][runtime]["vllm"]["version"] or ""
    needed = from_torch(locked)
    for name, entry in locked.items():
        at = f"{where}: {name} {entry['version']}"
        if name in expected and entry["version"] != expected[name]:
            yield Fault("bytes", f"{at}: pins.json has version {expected[name] or 'none, it is built from source'}")
        if name not in pins["wheels"]:
            if name in needed:
                yield Fault("bytes", f"{at}: torch needs it, pins.json has no wheel of it")
            continue
        pin = pinned.get((system, name, entry["version"]))
        if pin is None:
            versions = ", ".join(v for s, n, v in pinned if (s, n) == (system, name)) or "none"
            yield Fault("bytes", f"{at}: pins.json has for {system}: {versions}")
        elif pin != Wheel.from_entry(entry["version"], entry):
            yield Fault("bytes", f"{at}: {entry['hash']}, pins.json has {pin.hash} ({pin.filename})")


def from_torch(locked: Locked) -> set[str]:
    """What torch needs of NVIDIA, and triton: distributions whose bytes torch's own libraries load."""
    found: set[str] = set()
    waiting = ["torch"]
    while waiting:
        for line in locked.get(waiting.pop(), {}).get("requires", ()):
            name = canonicalize_name(Requirement(line).name)
            if name not in found:
                found.add(name)
                waiting.append(name)
    return {name for name in found if name.startswith("nvidia-") or name in {"triton", "cuda-bindings"}}


def satisfied(requirement: Requirement, locked: Locked) -> str | None:
    """None if a locked distribution satisfies the requirement, else what is found instead."""
    entry = locked.get(canonicalize_name(requirement.name))
    if entry is None:
        return "nothing of that name is locked"
    if not requirement.specifier.contains(entry["version"], prereleases=True):
        return f"{entry['version']} is locked"
    missing = sorted(requirement.extras - set(entry.get("extras", ())))
    return f"it is locked without the extra {', '.join(missing)}" if missing else None


def _reached(start: list[Stated], exceptions: Iterable[Exempt], locked: Locked, target: Target) -> dict[str, Member]:
    def requires(name: str) -> list[Requirement]:
        return [Requirement(line) for line in locked.get(name, {}).get("requires", ())]

    return walk(start, exceptions, target, requires)


def closure_faults(where: str, file: RuntimeFile, locked: Locked, target: Target) -> Iterator[Fault]:
    """Requirements that no entry satisfies, and entries that nothing asks for."""
    start = roots(file.stated, file.exceptions, target)
    for line in start:
        wrong = satisfied(Requirement(line.requirement), locked)
        if wrong:
            yield Fault("requirement", f"{where}: {line.requirement} ({line.source}): {wrong}")
    for name, entry in locked.items():
        for text in entry["requires"]:
            requirement = Requirement(text)
            wrong = satisfied(requirement, locked)
            if wrong and not any(exempt.covers(name, requirement) for exempt in file.exceptions):
                yield Fault("requirement", f"{where}: {name} requires {text}: {wrong}")
    reached = _reached(start, file.exceptions, locked, target)
    for name, entry in locked.items():
        if name not in reached:
            yield Fault("stale", f"{where}: {name}: nothing asks for it")
        elif reached[name].build_only != entry.get("build_only", False):
            only = "only the build needs it" if reached[name].build_only else "not only the build needs it"
            yield Fault("stale", f"{where}: {name}: {only}")


def exception_faults(runtime: str, file: RuntimeFile, systems: Mapping[str, Locked]) -> Iterator[Fault]:
    """Exceptions that no system needs: nobody asks for it any more, or it is satisfied."""
    for exempt in file.exceptions:
        if not any(_is_needed(exempt, file, locked) for locked in systems.values()):
            line = f"{exempt.distribution} requires {exempt.requires}"
            yield Fault("stale", f"{runtime}: the exception '{line}' is not needed")
        if not exempt.reason.strip():
            yield Fault("stale", f"{runtime}: the exception for {exempt.requires} has no reason")


def _is_needed(exempt: Exempt, file: RuntimeFile, locked: Locked) -> bool:
    asked = [Requirement(line) for line in locked.get(exempt.distribution, {}).get("requires", ())]
    if exempt.distribution == SOURCE_BUILT and SOURCE_BUILT not in locked:
        asked = [Requirement(line.requirement) for line in file.stated]
    covered = [requirement for requirement in asked if exempt.covers(exempt.distribution, requirement)]
    return any(satisfied(requirement, locked) for requirement in covered)


def lock_faults(lock: Mapping[str, Any], pins: Mapping[str, Any], file: RuntimeFile) -> list[Fault]:
    """Everything that is wrong with a lock, hardest first.

    Args:
        lock: nix/locks/RUNTIME.json.
        pins: pins.json.
        file: nix/locks/requirements/RUNTIME.toml.
    """
    runtime = file.runtime
    found: list[Fault] = []
    stale = {
        "runtime": lock["runtime"] != runtime,
        "python": lock["python"] != "cp312",
        "requirements": lock["requirements"] != [line.entry() for line in file.stated],
        "exceptions": lock["exceptions"] != [exempt.entry() for exempt in file.exceptions],
        "systems": set(lock["systems"]) != set(file.systems),
    }
    for key in (key for key, differs in stale.items() if differs):
        found.append(Fault("stale", f"{runtime}: {key} are not those of the .toml; run tools/locks/refresh.py"))
    for system, locked in lock["systems"].items():
        where, target = f"{runtime}, {system}", TARGETS[system]
        wrong_form = list(form_faults(where, locked, target))
        found += wrong_form + list(pin_faults(where, runtime, locked, pins, system))
        # Without proper names and versions the closure cannot be walked.
        if not any(fault.kind == "form" for fault in wrong_form):
            found += closure_faults(where, file, locked, target)
    found += exception_faults(runtime, file, lock["systems"])
    return by_hardness(found)
