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
    # By that patch alone: 0004 would make the mapping right as well.
    found = measure("kpool_mapping", damaged("0.30.0", "kpool-without-positions", repair=("0001",)), drafts=0)
    assert (found["wrong"], found["addresses"]) == (0, 1)


def test_cloned_mapping_leaves_a_graph_with_slots_of_another_step(
    damaged: Callable[..., Path], measure: Measure
) -> None:
    found = measure("kpool_mapping", damaged("0.30.0", "kpool-cloned-mapping"), drafts=0)
    assert found["wrong"] == 0
    assert found["addresses"] > 1
    assert found["recorded_wrong"] > 0
    found = measure("kpool_mapping", damaged("0.30.0", "kpool-cloned-mapping", repair=("0002",)), drafts=0)
    assert (found["wrong"], found["addresses"], found["recorded_wrong"]) == (0, 1, 0)


def test_both_defects_as_the_fork_has_them_are_patched_together(damaged: Callable[..., Path], measure: Measure) -> None:
    both = ("kpool-without-positions", "kpool-cloned-mapping")
    found = measure("kpool_mapping", damaged("0.30.0", *both), drafts=0)
    assert found["wrong"] > found["tokens"] * 0.9
    assert_right(measure("kpool_mapping", damaged("0.30.0", *both, repair=("0001", "0002", "0004")), drafts=0))


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


def test_later_steps_of_a_draft_map_the_tail_by_what_lies_behind_the_row(release: Tree, measure: Measure) -> None:
    found = measure("kpool_drafts", release("0.30.0"))
    assert all(slot > 1 << 20 for slot in found["found"]), found


@pytest.mark.parametrize("runtime", ["patched", "upstream"])
def test_later_steps_of_a_draft_stay_in_the_requests_own_block(patched: Tree, measure: Measure, runtime: str) -> None:
    found = measure("kpool_drafts", patched("0.30.0") if runtime == "patched" else None)
    assert found["found"] == found["expected"]


def test_of_the_series_it_is_the_bound_that_keeps_drafts_in_their_block(
    damaged: Callable[..., Path], measure: Measure
) -> None:
    found = measure("kpool_drafts", damaged("0.30.0", repair=("0001", "0002", "0003", "0005")))
    assert all(slot > 1 << 20 for slot in found["found"]), found
