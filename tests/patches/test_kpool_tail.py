"""The four defects of the K-pool tail (docs/kpool-tail.md), with vLLM's own block tables, builder and kernels.

Positions and the mapping in place are right in 0.30.0: there each defect is brought back, shown, and patched.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from patches.conftest import Measure

Tree = Callable[[str], Path]
#: Median error of a compressed key: e4m3 with a scale rounded up to a power of two leaves 0.008 to 0.016.
KEY_ERROR = 0.03


def assert_right(found: dict[str, Any]) -> None:
    """Every token of every step in its own request's block, at one address, without a read outside the tables."""
    assert found["tokens"] == 366
    assert found["wrong"] == 0
    assert found["addresses"] == 1
    assert found["recorded_wrong"] == 0
    assert found["read_outside"] == 0


@pytest.mark.parametrize("drafts", [0, 2])
def test_mapping_of_the_patched_release_is_right(patched: Tree, measure: Measure, drafts: int) -> None:
    assert_right(measure("kpool_mapping", patched("0.30.0"), drafts=drafts))


@pytest.mark.parametrize("drafts", [0, 2])
def test_mapping_of_the_upstream_runtime_is_right(measure: Measure, drafts: int) -> None:
    assert_right(measure("kpool_mapping", None, drafts=drafts))


def test_without_positions_slots_of_other_blocks_are_written(damaged: Callable[..., Path], measure: Measure) -> None:
    found = measure("kpool_mapping", damaged("0.30.0", "kpool-without-positions"), drafts=0)
    assert found["wrong"] > found["tokens"] * 0.9
    repaired = damaged("0.30.0", "kpool-without-positions", repair=True)
    assert_right(measure("kpool_mapping", repaired, drafts=0))


def test_cloned_mapping_leaves_a_graph_with_slots_of_another_step(
    damaged: Callable[..., Path], measure: Measure
) -> None:
    found = measure("kpool_mapping", damaged("0.30.0", "kpool-cloned-mapping"), drafts=0)
    assert found["wrong"] == 0
    assert found["addresses"] > 1
    assert found["recorded_wrong"] > 0
    repaired = damaged("0.30.0", "kpool-cloned-mapping", repair=True)
    assert_right(measure("kpool_mapping", repaired, drafts=0))


def test_generic_mapping_reads_outside_the_row_of_a_tail(release: Tree, measure: Measure) -> None:
    found = measure("kpool_mapping", release("0.30.0"), drafts=0)
    assert found["read_outside"] > 300
    assert found["wrong"] == 0


def test_prefill_seeds_into_pages_that_are_not_the_tail(release: Tree, measure: Measure) -> None:
    found = measure("kpool_cache", release("0.30.0"), drafts=0)
    assert found["seeded"]["wrong"] > 0
    assert found["seeded"]["written_elsewhere"] == found["seeded"]["tokens"] * 2 * 128
    assert found["accepted"]["worst_error"] > 0.3


@pytest.mark.parametrize("runtime", ["patched", "upstream"])
def test_seeded_tail_is_what_decode_completes(patched: Tree, measure: Measure, runtime: str) -> None:
    found = measure("kpool_cache", patched("0.30.0") if runtime == "patched" else None, drafts=0)
    assert found["seeded"] == {"tokens": 8, "wrong": 0, "written_elsewhere": 0}
    assert found["accepted"]["worst_error"] < KEY_ERROR


PROBE = Path(__file__).parents[2] / "python" / "src" / "glm53_exl3" / "probes" / "in_runtime" / "kpool_tail.py"


def test_preflight_sees_what_is_wrong_in_the_release_and_right_when_patched(
    release: Tree, patched: Tree, measure: Measure
) -> None:
    found = measure("preflight_probe", release("0.30.0"), probe=str(PROBE))
    assert {name for name, one in found.items() if one["verdict"] == "wrong"} == {"generic", "seed", "drafts"}
    for tree in (patched("0.30.0"), None):
        found = measure("preflight_probe", tree, probe=str(PROBE))
        assert {one["verdict"] for one in found.values()} == {"right"}, found
