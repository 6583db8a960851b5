"""The scratch that Python allocates and the memory plan counts, against the layout that the kernels work in."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from glm53_exl3.kernels.native import scratch as python
from glm53_exl3.kernels.native.scratch import DECODE_CHOICES, DECODE_ROWS, MAX_BYTES, Scratch, scratch_for

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "python" / "csrc" / "native"
#: Hidden, intermediate, experts, top-k; the first is GLM-5.3-Flash, the next two its shards.
LAYERS = (
    (4096, 2048, 288, 8),
    (4096, 1024, 288, 8),
    (4096, 512, 288, 8),
    (128, 128, 1, 1),
    (384, 640, 7, 3),
    (7168, 2048, 256, 8),
    (2048, 768, 128, 16),
    (65536, 65536, 4096, 16),
)
BATCHES = (1, 2, 63, 64, 127, 128, 129, 511, 1024, 2048, 8192, 65536)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("native") / "scratch_layout"
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", "-o", target]
    subprocess.run([*command, HERE / "scratch_layout.cpp"], check=True)
    return target


def test_bytes_are_those_of_the_layout(program: Path) -> None:
    shapes = [Scratch(*layer, tokens) for layer, tokens in itertools.product(LAYERS, BATCHES)]
    lines = [f"{one.tokens} {one.top_k} {one.hidden} {one.intermediate} {one.experts}" for one in shapes]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert found == [(one.counter_bytes, one.num_bytes) for one in shapes]


def test_choices_of_a_decode_step_are_those_of_the_kernels() -> None:
    constants = dict(re.findall(r"constexpr int (k\w+) = (\d+);", (SOURCES / "sizes.h").read_text(encoding="utf-8")))
    assert int(constants["kMaxDecodeChoices"]) == DECODE_CHOICES
    assert int(constants["kDecodeRows"]) == DECODE_ROWS


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("max_tokens", BATCHES)
def test_pieces_are_as_large_as_the_bound_lets_them(layer: tuple[int, int, int, int], max_tokens: int) -> None:
    found = scratch_for(*layer, max_tokens)
    assert 1 <= found.tokens <= max_tokens
    # One token is run whatever it takes.
    assert found.num_bytes <= MAX_BYTES or found.tokens == 1
    if found.tokens < max_tokens:
        next_size = python._PIECE_ROWS if found.tokens >= python._PIECE_ROWS else 1
        larger = Scratch(*layer, found.tokens + next_size)
        # Not a 16th of the bound is left over.
        assert larger.num_bytes > MAX_BYTES * 15 // 16


def test_a_layer_of_glm_runs_its_largest_usual_batch_in_one_piece() -> None:
    assert scratch_for(4096, 2048, 288, 8, 2048).tokens == 2048


def test_counters_lie_in_the_same_place_for_every_batch() -> None:
    """Otherwise a call with other numbers of tokens or choices would leave its data where this one expects 0."""
    sizes = {
        Scratch(512, 256, 12, top_k, tokens).counter_bytes for top_k in (1, 4, 16) for tokens in (1, 64, 700, 2000)
    }
    assert len(sizes) == 1
