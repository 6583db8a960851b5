"""Differences between what a vLLM tree asks for and what the pins and the lock of the fork hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cmake_sources import FetchedSource, fetched_sources
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirement_files import asked_by_build, asked_by_wheel

_MEANWHILE = "meanwhile: nix run .#serve-upstream"
#: setuptools builds wheels itself since 70.1; nothing imports the package of that name.
_NOT_NEEDED = {"wheel"}
SYSTEM = "aarch64-linux"


@dataclass(frozen=True)
class Difference:
    """One disagreement.

    Attributes:
        file: of the tree, where it asks.
        asked: what it asks for.
        pinned: what there is instead.
        remedy: what to change.
    """

    file: str
    asked: str
    pinned: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: asked {self.asked}; pinned {self.pinned}; {self.remedy}; {_MEANWHILE}"


def source_differences(tree: Path, pinned: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Sources that CMake would download, against `sources` of the pins."""
    asked = fetched_sources(tree)
    # One source a file; a second one is then reported as not pinned.
    by_file: dict[str, FetchedSource] = {}
    for source in asked:
        by_file.setdefault(source.file, source)
    differences = []
    known = set()
    for name, pin in pinned.items():
        if "submodule_of" in pin:
            continue
        source = by_file.get(pin["git_tag_in"])
        if source is None:
            remedy = f"drop sources.{name} from pins.json"
            differences.append(Difference(pin["git_tag_in"], "no source", f"{pin['repository']} as {name}", remedy))
            continue
        known.add(source)
        differences += _of_source(tree, name, pin, source, pinned)
    for source in asked:
        if source not in known:
            remedy = "add it to sources of pins.json"
            differences.append(Difference(source.file, f"{source.repository} {source.tag}".strip(), "nothing", remedy))
    return differences


def _of_source(
    tree: Path, name: str, pin: Mapping[str, Any], source: FetchedSource, pinned: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    remedy = f"change sources.{name} of pins.json"
    if source.repository.lower() != pin["repository"].lower() or source.tag != pin["git_tag"]:
        yield Difference(
            source.file, f"{source.repository} {source.tag}", f"{pin['repository']} {pin['git_tag']}", remedy
        )
    submodules = {one["path"] for one in pinned.values() if one.get("submodule_of") == name}
    if source.submodules is not None and set(source.submodules) != submodules:
        asked, have = (", ".join(sorted(paths)) or "none" for paths in (source.submodules, submodules))
        yield Difference(source.file, f"submodules {asked}", f"submodules {have}", remedy)
    variable = pin["cmake_variable"]
    own = f"FETCHCONTENT_SOURCE_DIR_{source.content.upper()}"
    if variable != own and variable not in (tree / source.file).read_text(encoding="utf-8"):
        yield Difference(source.file, f"no folder of {name} by {variable}", variable, f"use {own} for {name}")


def requirement_differences(
    tree: Path, lock: Mapping[str, Any], overridden: Mapping[str, str]
) -> tuple[list[Difference], list[str]]:
    """Requirements of the wheel against the lock, and notes on those that are met otherwise on purpose.

    `overridden` has versions that this distribution chose itself, by name.
    """
    wheels = {canonicalize_name(name): entry for name, entry in lock["systems"][SYSTEM].items()}
    extras: dict[str, set[str]] = {}
    for one in lock["requirements"]:
        requirement = Requirement(one["requirement"])
        extras.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    excepted = {
        canonicalize_name(Requirement(one["requires"]).name): one["reason"]
        for one in lock["exceptions"]
        if canonicalize_name(one["distribution"]) == "vllm"
    }
    differences, notes = [], []
    for file, requirement in asked_by_wheel(tree):
        name = canonicalize_name(requirement.name)
        version = wheels[name]["version"] if name in wheels else None
        met = version is not None and requirement.specifier.contains(version, prereleases=True)
        if met and requirement.extras <= extras.get(name, requirement.extras):
            continue
        if not met and name in overridden and version == overridden[name]:
            notes.append(f"{file}: asked {requirement}; {version} by decision (pins.json, runtimes.fork)")
        elif not met and name in excepted:
            notes.append(f"{file}: asked {requirement}; {version or 'nothing'} by decision ({excepted[name]})")
        else:
            have = _have(name, version, extras)
            differences.append(
                Difference(
                    file,
                    str(requirement),
                    have,
                    "run tools/locks/refresh.py fork after changing the requirements there",
                )
            )
    return differences, notes


def _have(name: str, version: str | None, extras: Mapping[str, set[str]]) -> str:
    if version is None:
        return "nothing"
    chosen = ",".join(sorted(extras.get(name, ())))
    return f"{name}{f'[{chosen}]' if chosen else ''}=={version}"


def build_differences(tree: Path, lock: Mapping[str, Any], tools: Mapping[str, str]) -> list[Difference]:
    """Build requirements of pyproject.toml against `tools` (name -> version) and, where none is named, the lock."""
    wheels = {canonicalize_name(name): entry["version"] for name, entry in lock["systems"][SYSTEM].items()}
    versions = wheels | {canonicalize_name(name): version for name, version in tools.items()}
    differences = []
    for requirement in asked_by_build(tree):
        name = canonicalize_name(requirement.name)
        version = versions.get(name)
        if name in _NOT_NEEDED or (version is not None and requirement.specifier.contains(version, prereleases=True)):
            continue
        have = "nothing" if version is None else f"{name}=={version}"
        differences.append(
            Difference("pyproject.toml", str(requirement), have, "change the build tools of nix/packages/vllm-fork.nix")
        )
    return differences
