"""Options of `bench kernels`: what they mean, and mistakes named with the option and a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench_kernels.settings import LayerShape, Options, read_options


def test_defaults_are_the_layer_of_glm() -> None:
    found = read_options(Options(), "glm-5.3-flash")
    assert found.shape == LayerShape(hidden=4096, intermediate=2048, experts=288, top_k=8)
    assert found.tokens == (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    assert (found.bits, found.codebook, found.limit) == ((2, 2, 2), "mcg", 10.0)
    assert (found.backends, found.routing) == (None, "uniform")


def test_each_option_replaces_one_value_of_the_profile() -> None:
    typed = Options(
        profile="small", tokens="2, 5", bits="2,3,4", hidden=256, experts=6, backend=("b", "a", "b"), codebook="mul1"
    )
    found = read_options(typed, "glm-5.3-flash")
    assert found.shape == LayerShape(256, 256, 6, 4)
    assert (found.tokens, found.bits, found.codebook) == ((2, 5), (2, 3, 4), "mul1")
    assert found.backends == ("b", "a")


def test_fewer_experts_than_the_profile_chooses_lower_the_default_of_top_k() -> None:
    assert read_options(Options(profile="small", experts=3), "small").shape.top_k == 3


@pytest.mark.parametrize(
    ("mistake", "option", "hint"),
    [
        ({"profile": "glm"}, "--profile glm", "--profile glm-5.3-flash"),
        ({"tokens": ""}, "--tokens ", "--tokens 1,2,4,8"),
        ({"tokens": "1,x"}, "--tokens 1,x", "--tokens 1,2,4,8"),
        ({"tokens": "0"}, "--tokens 0", "--tokens 1,2,4,8"),
        ({"tokens": "-1"}, "--tokens -1", "--tokens 1,2,4,8"),
        ({"tokens": "2,2"}, "--tokens 2,2", "--tokens 1,2,4,8"),
        ({"tokens": "65537"}, "--tokens 65537", "--tokens 1,2,4,8"),
        ({"bits": "9"}, "--bits 9", "--bits 2"),
        ({"bits": "2,3"}, "--bits 2,3", "--bits 2"),
        ({"bits": "2.5"}, "--bits 2.5", "--bits 2"),
        ({"codebook": "MCG"}, "--codebook MCG", "--codebook 3inst"),
        ({"hidden": 200}, "--hidden 200", "--hidden 128"),
        ({"hidden": 0}, "--hidden 0", "--hidden 128"),
        ({"intermediate": -128}, "--intermediate -128", "--intermediate 128"),
        ({"experts": 0}, "--experts 0", "--experts 1"),
        ({"top_k": 17}, "--top-k 17", "--top-k 16"),
        ({"experts": 64, "top_k": 33}, "--top-k 33", "--top-k 32"),
        ({"limit": -1.0}, "--limit -1.0", "--limit 10"),
        ({"limit": float("nan")}, "--limit nan", "--limit 10"),
        ({"repeat": 0}, "--repeat 0", "--repeat 1"),
        ({"routing": "random"}, "--routing random", "--routing uniform"),
        ({"seed": -1}, "--seed -1", "--seed 0"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(mistake: dict[str, Any], option: str, hint: str) -> None:
    with pytest.raises(BenchError) as caught:
        read_options(replace(Options(), **mistake), "small")
    assert (caught.value.id, caught.value.what, caught.value.hint) == ("kernel-bench-option", option, hint)
    assert caught.value.expected
    name, _, right = hint.partition(" ")
    field = name.removeprefix("--").replace("-", "_")
    value = right if field in ("tokens", "bits", "codebook", "routing", "profile") else type(mistake[field])(right)
    read_options(replace(Options(), **{**mistake, field: value}), "small")
