"""Profiles: what each is for, and the sizes of graphs that go with speculation."""

from __future__ import annotations

from dataclasses import fields

import pytest

from glm53_exl3.demo import faq
from glm53_exl3.plan.planner import DEFAULT_FLOOR_BYTES
from glm53_exl3.serve.profiles import CAPTURE_SIZES, DEFAULT_TOKENS, PROFILES, Profile, capture_sizes
from glm53_exl3.serve.settings import PROFILE_FIELDS, Settings

GLM = [profile for profile in PROFILES.values() if profile.name != "demo"]


def test_contexts_speculation_and_prefix_caching_are_those_of_the_recipe() -> None:
    stated = {p.name: (p.context, p.speculation, p.prefix_caching, p.sequences, p.kv_dtype) for p in GLM}
    assert stated == {
        "chat": (8192, "mtp", True, 1, "fp8"),
        "long": (65_536, "mtp", True, 1, "fp8"),
        "max": (262_144, "none", False, 1, "fp8"),
    }
    assert dict(DEFAULT_TOKENS) == {"none": 0, "mtp": 2, "dflash2": 3}


def test_demo_profile_is_that_of_the_demo_pack() -> None:
    demo = PROFILES["demo"]
    assert (demo.served_name, demo.context) == (faq.SERVED_NAME, faq.MAX_MODEL_LEN_TOKENS)
    assert demo.enforce_eager
    assert demo.kv_cache_bytes == 64 << 20
    assert not demo.memory_plan


def test_floor_is_that_of_the_memory_plan() -> None:
    assert {profile.floor for profile in GLM} == {DEFAULT_FLOOR_BYTES / (1 << 30)}


def test_every_value_of_a_profile_is_a_setting() -> None:
    own = {"name", "purpose", "arguments"}
    assert {each.name for each in fields(Profile)} - own == set(PROFILE_FIELDS) <= {f.name for f in fields(Settings)}


def test_sizes_are_the_recipes_for_one_sequence() -> None:
    assert capture_sizes("none", 0, 1) == ()
    assert capture_sizes("mtp", 2, 1) == CAPTURE_SIZES["mtp"] == (1, 2, 3, 4, 5, 6, 8, 12)
    assert capture_sizes("dflash2", 3, 1) == CAPTURE_SIZES["dflash2"] == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("tokens", "sequences", "added"),
    [(6, 1, {7}), (2, 4, {3, 6, 12}), (2, 10, {3, 6, 12, 24, 30}), (3, 16, {4, 8, 16, 32, 64})],
)
def test_sizes_cover_whole_requests_of_verified_tokens(tokens: int, sequences: int, added: set[int]) -> None:
    sizes = capture_sizes("mtp", tokens, sequences)
    assert set(sizes) == {*CAPTURE_SIZES["mtp"], *added}
    assert list(sizes) == sorted(sizes)


def test_no_profile_may_take_a_long_prefill_for_a_stall() -> None:
    # Seconds that the recipe measured for a prompt of the whole context: 14.8, about 109, and up to 515.
    longest = {"chat": 15, "long": 109, "max": 515}
    assert all(profile.watchdog >= 3 * longest[profile.name] for profile in GLM)
