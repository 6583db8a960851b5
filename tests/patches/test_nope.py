"""Sparse MLA without rotary part on SM12x: patches 0010 (zeros), 0011 (lengths) and 0012 (2048 entries).

vLLM's own code runs on the CPU, its Triton kernels in Triton's interpreter. In the place of FlashInfer's kernel stands
a reference that holds the call to what the sources of 0.6.18rc10 (for vLLM 0.32.0: 0.7.0.post1) take.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "patches" / "vllm"
#: An answer is rounded to BF16: values up to 4 by at most 2^-7.
ROUNDING = 2**-7
#: Of the six tokens of nope.selections: the place behind the last valid entry, 1 where there is none.
LENGTHS = [2047, 2048, 1, 3, 1, 70]

Measured = dict[str, Any]


@pytest.fixture
def unpatched(release: Callable[[str], Path], measure: Callable[..., Measured]) -> Measured:
    return measure("nope", release("0.30.0"), flashinfer="0.6.18", width=2176, families=[120])


@pytest.fixture
def fixed(patched: Callable[[str], Path], measure: Callable[..., Measured]) -> Measured:
    return measure("nope", patched("0.30.0"), flashinfer="0.6.18", width=2048, families=[120, 90])


@pytest.fixture(scope="module")
def older(
    release: Callable[[str], Path], measure: Callable[..., Measured], tmp_path_factory: pytest.TempPathFactory
) -> Measured:
    """0.29.0, whose file for SM120 is most likely the fork's; GLM-5.3-Flash itself is not in it."""
    tree = tmp_path_factory.mktemp("older") / "vllm-0.29.0"
    shutil.copytree(release("0.29.0") / "vllm", tree / "vllm")
    for number in ("0010", "0011", "0013", "0014"):
        (patch,) = PATCHES.glob(f"{number}-*.patch")
        command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--input", str(patch)]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return measure("nope", tree, flashinfer="0.6.18", width=2048, families=[])


@pytest.fixture
def upstream(measure: Callable[..., Measured]) -> Measured:
    """0.32.0 with its FlashInfer, over blocks of 128 rows."""
    return measure("nope", None, flashinfer="0.7", width=2176, families=[120], page=128)


def test_nope_unpatched_is_refused_by_cache_and_kernel(unpatched: Measured) -> None:
    assert unpatched["nope"]["refused"] == "pe_dim must be 64 for fp8_ds_mla"
    assert "qk_rope_head_dim=0" in unpatched["nope"]["forward refused"]


@pytest.mark.parametrize("tree", ["fixed", "older", "upstream"])
def test_nope_equals_attention_over_latents(tree: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(tree)["nope"]
    assert found["refused"] == ""
    assert found["rows as expected"], "the row of 656 bytes with a rotary part of zeros"
    assert found["forward refused"] == ""
    assert found["shape"] == [6, 8, 512]
    assert 0 <= found["largest error"] < ROUNDING
    assert found["rows beyond"] == 0


@pytest.mark.parametrize("tree", ["fixed", "older"])
def test_nope_of_another_rank_is_refused_by_name(tree: str, request: pytest.FixtureRequest) -> None:
    assert "requires kv_lora_rank=512; got 256" in request.getfixturevalue(tree)["other rank"]


@pytest.mark.parametrize("tree", ["unpatched", "fixed", "older", "upstream"])
def test_rotary_part_stays_as_it_is(tree: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(tree)["rotary"]
    assert found["rows as expected"]
    assert 0 <= found["largest error"] < ROUNDING


def test_lengths_unpatched_are_absent(unpatched: Measured) -> None:
    assert unpatched["rotary"]["empty rows"] == [3.0], "the value in row 0"
    assert unpatched["rotary"]["chunks"] == [32] * 6


@pytest.mark.parametrize("tree", ["fixed", "older"])
@pytest.mark.parametrize("kind", ["nope", "rotary"])
def test_lengths_end_behind_last_entry(tree: str, kind: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(tree)[kind]
    assert found["width"] == 2048
    assert found["lengths"] == LENGTHS
    assert found["chunks"] == [-(-length // 64) for length in LENGTHS]
    assert found["empty rows"] == [0.0]


def test_selection_unpatched_does_not_fit_the_kernel(unpatched: Measured) -> None:
    found = unpatched["selection"]["120"]
    assert found["widths"] == {"model": 2176, "mtp": 2176}
    assert found["given"]["decode"]["columns used"] == 2051
    assert "2051" in found["2048"]["decode"]["refused"], "a narrower buffer alone"
    assert "2051" in found["2048"]["prefill"]["refused"]


@pytest.mark.parametrize("way", ["prefill", "without positions", "decode"])
def test_selection_keeps_best_pools_and_whole_tail(way: str, fixed: Measured) -> None:
    found = fixed["selection"]["120"]["given"][way]
    assert found["wrong"] == []
    assert found["columns used"] <= 2048
    for position, count in found["counts"].items():
        tokens = int(position) + 1
        tail = 0 if way == "without positions" else tokens % 4
        assert count == min(tokens // 4, 511) * 4 + tail


def test_selection_is_2048_wide_on_sm12x(fixed: Measured) -> None:
    found = fixed["selection"]["120"]
    assert found["widths"] == {"model": 2048, "mtp": 2048}
    assert found["given"]["asked"] == ["prefill 511", "prefill 511", "decode 511"]
    assert found["given"]["short wrong"] == [], "a context of 2048 tokens is taken whole"


def test_selection_elsewhere_is_unchanged(fixed: Measured, unpatched: Measured) -> None:
    found = fixed["selection"]["90"]
    assert found["widths"] == {"model": 2176, "mtp": 2176}
    assert found["given"] == unpatched["selection"]["120"]["given"]


def test_upstream_has_the_whole_selection(upstream: Measured) -> None:
    assert upstream["selection"]["120"]["widths"] == {"model": 2176, "mtp": 2176}
    assert upstream["nope"]["width"] == 2176
