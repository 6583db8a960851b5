"""What each runtime is made of: nix/locks/requirements/*.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUNTIMES = ("fork", "upstream", "demo")


@dataclass(frozen=True)
class Stated:
    """A requirement that a person wrote down.

    Attributes:
        requirement: as in PEP 508.
        source: the file it was taken from.
        build: whether only the build of vLLM needs it.
    """

    requirement: str
    source: str
    build: bool = False

    def entry(self) -> dict[str, Any]:
        """What a lock writes of it."""
        entry: dict[str, Any] = {"requirement": self.requirement, "source": self.source}
        return {**entry, "build": True} if self.build else entry


@dataclass(frozen=True)
class Exempt:
    """A requirement that the lock leaves unsatisfied.

    Attributes:
        distribution: who asks for it, normalised; `vllm` also where vLLM is built from source.
        requires: the requirement, as its wheel or source writes it.
        reason: why it is left.
    """

    distribution: str
    requires: str
    reason: str

    def covers(self, distribution: str, requirement: Requirement) -> bool:
        """Whether this is the exception for a distribution's requirement; markers are not compared."""
        own = Requirement(self.requires)
        same = canonicalize_name(own.name) == canonicalize_name(requirement.name)
        return same and self.distribution == distribution and own.specifier == requirement.specifier

    def entry(self) -> dict[str, str]:
        """What a lock writes of it."""
        return {"distribution": self.distribution, "requires": self.requires, "reason": self.reason}


@dataclass(frozen=True)
class RuntimeFile:
    """One of the files.

    Attributes:
        runtime: `fork`, `upstream` or `demo`.
        systems: the systems that it is locked for.
        stated: requirements, in the file's order.
        exceptions: in the file's order.
    """

    runtime: str
    systems: tuple[str, ...]
    stated: tuple[Stated, ...]
    exceptions: tuple[Exempt, ...]


def _groups(raw: dict[str, Any], root: Path) -> Iterator[Stated]:
    for group in raw["group"]:
        lines = list(group.get("requirements", ()))
        if "project" in group:
            text = (root / group["project"]).read_text(encoding="utf-8")
            project = tomllib.loads(text)["project"]
            lines += project["dependencies"]
            for extra in group["extras"]:
                lines += project["optional-dependencies"][extra]
        for line in lines:
            yield Stated(str(Requirement(line)), group["source"], group.get("build", False))


def read(runtime: str, root: Path = ROOT) -> RuntimeFile:
    """The file of a runtime.

    Args:
        root: the repository.
    """
    path = root / "nix/locks/requirements" / f"{runtime}.toml"
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return RuntimeFile(
        runtime,
        tuple(raw["systems"]),
        tuple(_groups(raw, root)),
        tuple(Exempt(**entry) for entry in raw.get("exception", ())),
    )
