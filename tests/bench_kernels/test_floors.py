"""Bytes, and how many calls a replay needs so that weights come from memory."""

from __future__ import annotations

import pytest

from glm53_exl3.bench_kernels import floors
from glm53_exl3.bench_kernels.settings import PROFILES, LayerShape

GLM = PROFILES["glm-5.3-flash"][0]
H200_L2 = 60 << 20


def test_an_expert_of_the_pack_has_its_bytes() -> None:
    # Three trellises of [256, 128, 32] int16, then suh and svh of each.
    assert floors.expert_bytes(GLM, (2, 2, 2)) == 3 * 256 * 128 * 32 * 2 + 3 * (4096 + 2048) * 2
    assert floors.expert_bytes(GLM, (2, 3, 4)) == 256 * 128 * (32 + 48 + 64) * 2 + 3 * (4096 + 2048) * 2
    assert floors.layer_bytes(GLM, (2, 2, 2)) == 288 * floors.expert_bytes(GLM, (2, 2, 2))


def test_touched_experts_by_uniform_routing() -> None:
    assert floors.expected_experts(GLM, 1) == pytest.approx(8)
    assert floors.expected_experts(GLM, 3) == pytest.approx(23.3, abs=0.05)
    assert floors.expected_experts(LayerShape(128, 128, 4, 4), 7) == 4


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 64, 256, 8192])
@pytest.mark.parametrize("bits", [2, 3])
def test_a_replay_of_the_glm_layer_cannot_stay_in_the_l2_of_an_h200(tokens: int, bits: int) -> None:
    calls = floors.num_calls(GLM, (bits,) * 3, tokens, H200_L2)
    touched = floors.expected_experts(GLM, tokens) * floors.expert_bytes(GLM, (bits,) * 3)
    assert calls * touched >= 4 * H200_L2
    assert floors.num_layers(GLM, (bits,) * 3, H200_L2) == 1


def test_few_tokens_are_averaged_over_routings_and_many_are_not() -> None:
    found = {tokens: floors.num_calls(GLM, (2,) * 3, tokens, H200_L2) for tokens in (1, 32, 64, 128, 8192)}
    assert found == {1: 8, 32: 8, 64: 4, 128: 2, 8192: 1}


@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_the_same_experts_for_all_tokens_take_as_many_calls_as_their_bytes_need(tokens: int) -> None:
    calls = floors.num_calls(GLM, (2,) * 3, tokens, H200_L2, "same")
    assert calls == {1: 8, 64: 5, 8192: 5}[tokens]
    assert floors.is_cold(calls * 8 * floors.expert_bytes(GLM, (2,) * 3), H200_L2)


def test_small_layers_take_turns_up_to_a_bound() -> None:
    small = LayerShape(512, 256, 16, 4)
    assert floors.num_layers(small, (2, 2, 2), H200_L2) == floors.MOST_CALLS
    one = floors.layer_bytes(small, (2, 2, 2))
    assert floors.num_layers(small, (2, 2, 2), 2 * one) == 8
    assert not floors.is_cold(7 * one, 2 * one)
    assert floors.is_cold(8 * one, 2 * one)


def test_a_floor_is_bytes_over_bandwidth() -> None:
    assert floors.floor_microseconds(50e6, 4e12) == pytest.approx(12.5)
