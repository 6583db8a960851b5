"""Walk a closure: who asks for what on a target, with markers and extras evaluated there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from runtime_files import Exempt, Stated
from wheel_files import Target

#: The distribution that the requirements of vLLM's own source belong to.
SOURCE_BUILT = "vllm"


def applies(requirement: Requirement, target: Target, extras: Iterable[str] = ()) -> bool:
    """Whether a requirement holds on the target for a distribution with these extras."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**target.environment, "extra": extra}) for extra in ("", *extras))


def bare(requirement: Requirement) -> str:
    """The requirement without its marker, which has been evaluated."""
    plain = Requirement(str(requirement))
    plain.marker = None
    return str(plain)


@dataclass
class Member:
    """A distribution of the closure.

    Attributes:
        extras: those that anybody asks for.
        requires: what it asks for on the target, sorted, without markers.
        build_only: whether nothing but the build of vLLM needs it.
    """

    extras: set[str] = field(default_factory=set)
    requires: list[str] = field(default_factory=list)
    build_only: bool = True


def roots(stated: Iterable[Stated], exceptions: Iterable[Exempt], target: Target) -> list[Stated]:
    """The stated requirements that hold on the target and are not excepted."""
    kept = []
    for line in stated:
        requirement = Requirement(line.requirement)
        left = any(exempt.covers(SOURCE_BUILT, requirement) for exempt in exceptions)
        if applies(requirement, target) and not left:
            kept.append(line)
    return kept


def walk(
    start: Iterable[Stated],
    exceptions: Iterable[Exempt],
    target: Target,
    requires_dist: Callable[[str], list[Requirement]],
) -> dict[str, Member]:
    """Everything that is reached from the stated requirements.

    Args:
        requires_dist: the Requires-Dist of a distribution by normalised name, unevaluated.

    Returns:
        By normalised name.
    """
    exempt = tuple(exceptions)
    members: dict[str, Member] = {}
    waiting = deque((Requirement(line.requirement), line.build) for line in start)
    while waiting:
        wanted, build = waiting.popleft()
        name = canonicalize_name(wanted.name)
        known = name in members
        member = members.setdefault(name, Member())
        if known and wanted.extras <= member.extras and (build or not member.build_only):
            continue
        member.extras |= wanted.extras
        member.build_only = member.build_only and build
        holding = [r for r in requires_dist(name) if applies(r, target, member.extras)]
        member.requires = sorted({bare(r) for r in holding})
        for requirement in holding:
            if not any(entry.covers(name, requirement) for entry in exempt):
                waiting.append((requirement, member.build_only))
    return members
