"""The walk over a closure: markers of the target, extras, exceptions, the build."""

from __future__ import annotations

import pytest
from closure import Member, walk
from lock_making import overrides
from packaging.requirements import Requirement
from runtime_files import Exempt, RuntimeFile, Stated
from wheel_files import TARGETS

SPARK = TARGETS["aarch64-linux"]
METADATA = {
    "app": ["core[fast]>=1", 'old; python_version < "3.12"', 'intel; platform_machine == "x86_64"'],
    "core": ['speed; extra == "fast"', 'colour; extra == "fancy"', 'arm; platform_machine == "aarch64"'],
    "late": ["core[fancy]"],
    "tool": ["core", "helper"],
}


def walked(*stated: Stated, exceptions: tuple[Exempt, ...] = ()) -> dict[str, Member]:
    return walk(stated, exceptions, SPARK, lambda name: [Requirement(r) for r in METADATA.get(name, [])])


def test_markers_are_those_of_the_target() -> None:
    members = walked(Stated("app", "hand"))
    assert set(members) == {"app", "core", "speed", "arm"}
    assert members["app"].requires == ["core[fast]>=1"]
    assert members["core"].requires == ["arm", "speed"]
    x86 = walk(
        [Stated("app", "")], (), TARGETS["x86_64-linux"], lambda n: [Requirement(r) for r in METADATA.get(n, [])]
    )
    assert set(x86) == {"app", "core", "speed", "intel"}


def test_an_extra_that_is_asked_for_later_adds_its_requirements() -> None:
    members = walked(Stated("app", "hand"), Stated("late", "hand"))
    assert members["core"].extras == {"fast", "fancy"}
    assert members["core"].requires == ["arm", "colour", "speed"]
    assert "colour" in members


def test_what_only_the_build_needs_is_marked() -> None:
    members = walked(Stated("tool", "hand", build=True), Stated("app", "hand"))
    assert {name for name, member in members.items() if member.build_only} == {"tool", "helper"}


def test_an_exception_is_not_followed_but_stays_among_the_requirements() -> None:
    exempt = Exempt("app", "core[fast]>=1", "why")
    members = walked(Stated("app", "hand"), exceptions=(exempt,))
    assert set(members) == {"app"}
    assert members["app"].requires == ["core[fast]>=1"]


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ([], ["core; python_version < '0'"]),
        (["core==2"], ["core==2"]),
    ],
)
def test_uv_drops_an_excepted_name_or_takes_the_stated_version(stated: list[str], expected: list[str]) -> None:
    lines = tuple(Stated(line, "hand") for line in stated)
    file = RuntimeFile("demo", ("aarch64-linux",), lines, (Exempt("app", "core>=1", "why"),))
    assert overrides(file) == expected
