"""What the canary calls wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm53_exl3.demo.canary import Answer, Canary, load_canary
from glm53_exl3.demo.faq import demo_pack, load_faq
from glm53_exl3.errors import PackError
from glm53_exl3.pack.inventory import read_inventory

CANARY = Canary(0.01, (Answer("q", "a", -0.5), Answer("r", "b", -0.1)))


def test_right_answers_pass() -> None:
    assert CANARY.failures([Answer("q", "a", -0.509), Answer("r", "b", -0.1)]) == []


def test_other_words_fail() -> None:
    assert CANARY.failures([Answer("q", "x", -0.5)]) == ["'q': 'x' instead of 'a'"]


@pytest.mark.parametrize("logprob", [-0.511, -0.489, float("nan"), float("-inf"), 0.0])
def test_other_log_probability_fails(logprob: float) -> None:
    found = CANARY.failures([Answer("q", "a", logprob)])
    assert len(found) == 1
    assert "instead of -0.5000" in found[0]


def test_saved_canary_loads_as_it_was(tmp_path: Path) -> None:
    CANARY.save(tmp_path)
    assert load_canary(tmp_path) == CANARY
    assert CANARY.expected("r") == Answer("r", "b", -0.1)
    assert CANARY.expected("other") is None


def test_pack_without_canary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no canary\.json"):
        load_canary(tmp_path)


def test_demo_pack_is_sound_mixed_and_small() -> None:
    inventory = read_inventory(demo_pack())
    inventory.require_sound()
    assert {layer.layer: layer.bits for layer in inventory.layers.values()} == {1: (2, 2, 2), 2: (3, 3, 3)}
    assert inventory.stated.layer_bits == {2: 3}
    assert sum(path.stat().st_size for path in demo_pack().iterdir()) <= 4_000_000


def test_checkpoint_of_the_demo_pack_is_small() -> None:
    checkpoint = Path(__file__).parents[2] / "tools" / "demo" / "checkpoint"
    assert sum(path.stat().st_size for path in checkpoint.iterdir()) <= 10_000_000


def test_faq_is_about_forty_distinct_questions() -> None:
    entries = load_faq()
    assert 38 <= len(entries) <= 50
    assert len({entry.question for entry in entries}) == len({entry.answer for entry in entries}) == len(entries)
