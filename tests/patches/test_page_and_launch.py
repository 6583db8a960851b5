"""Pages of 64 rows and of 64 pools, and launches without programmatic dependency, on SM12x: patches 0013 to 0015."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PATCHES = Path(__file__).parents[2] / "patches" / "vllm"
DAMAGE = Path(__file__).parent / "data" / "indexer-pages-of-32.patch"
CUDA = Path("vllm/platforms/cuda.py")

Measured = dict[str, Any]


@pytest.fixture
def unpatched(release: Callable[[str], Path], measure: Callable[..., Measured]) -> Measured:
    return measure("nope", release("0.30.0"), flashinfer="0.6.18", width=2176, families=[120])


@pytest.fixture
def fixed(patched: Callable[[str], Path], measure: Callable[..., Measured]) -> Measured:
    return measure("nope", patched("0.30.0"), flashinfer="0.6.18", width=2048, families=[120, 90])


@pytest.fixture
def upstream(measure: Callable[..., Measured]) -> Measured:
    return measure("nope", None, flashinfer="0.7", width=2176, families=[120], page=128)


@pytest.fixture(scope="module")
def alignments(
    release: Callable[[str], Path], measure: Callable[..., Measured], tmp_path_factory: pytest.TempPathFactory
) -> Measured:
    """By text of cuda.py: with pages of 32 back as in a fork of the pinned commit, and with 0015 upon that."""
    folder = tmp_path_factory.mktemp("alignments")
    (repair,) = PATCHES.glob("0015-*.patch")
    files = {}
    for name, patches in (("damaged", [DAMAGE]), ("repaired", [DAMAGE, repair])):
        file = folder / name / CUDA
        file.parent.mkdir(parents=True)
        shutil.copyfile(release("0.30.0") / CUDA, file)
        for patch in patches:
            command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--input", str(patch)]
            subprocess.run(command, cwd=folder / name, check=True, capture_output=True)
        files[name] = str(file)
    return measure("nope_platform", release("0.30.0"), files=files)


def test_pages_unpatched_have_256_rows(unpatched: Measured) -> None:
    assert unpatched["pages"]["2304"] == 256


def test_pages_have_64_rows(fixed: Measured) -> None:
    assert set(fixed["pages"].values()) == {64}


def test_pages_upstream_are_handed_over_by_64_rows(upstream: Measured) -> None:
    """0.32.0 keeps whole blocks: they have 128 rows here, and the reference kernel takes pages of 64 rows only."""
    assert upstream["pages"]["2304"] == 2304
    assert upstream["nope"]["forward refused"] == ""


def test_blocks_damaged_are_aligned_to_32_pools(alignments: Measured) -> None:
    assert alignments["damaged"]["12.1"]["alignment"] == 32 * 4


def test_blocks_are_aligned_to_64_pools_on_sm12x(alignments: Measured, fixed: Measured) -> None:
    for found in (alignments["repaired"], fixed["platform"]):
        assert {name: decided["alignment"] // 4 for name, decided in found.items()} == {
            "8.9": 32,
            "9.0": 32,
            "10.0": 32,
            "12.0": 64,
            "12.1": 64,
        }


@pytest.mark.parametrize("tree", ["unpatched", "upstream"])
def test_launches_upstream_depend_on_sm12x(tree: str, request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue(tree)["platform"]["12.1"]["pdl"]


def test_launches_depend_on_majors_9_and_10(fixed: Measured) -> None:
    used = {name: decided["pdl"] for name, decided in fixed["platform"].items()}
    assert used == {"8.9": False, "9.0": True, "10.0": True, "12.0": False, "12.1": False}
