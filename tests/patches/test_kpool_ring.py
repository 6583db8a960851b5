"""A fifth defect of the K-pool tail: drafts that are rejected overwrite keys of the pool they did not complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from patches.conftest import Measure
from patches.test_kpool_tail import KEY_ERROR

Tree = Callable[[str], Path]


def test_rejected_drafts_spoil_pools_of_the_release(release: Tree, measure: Measure) -> None:
    found = measure("kpool_cache", release("0.30.0"), drafts=2)
    assert found["rejected"]["slots"] == 4
    assert found["rejected"]["worst_error"] > 0.3


@pytest.mark.parametrize("runtime", ["patched", "upstream"])
@pytest.mark.parametrize(("drafts", "slots"), [(2, 8), (7, 16)])
def test_pools_are_right_whatever_is_rejected(
    patched: Tree, measure: Measure, runtime: str, drafts: int, slots: int
) -> None:
    found = measure("kpool_cache", patched("0.30.0") if runtime == "patched" else None, drafts=drafts)
    assert found["rejected"]["slots"] == slots
    assert found["rejected"]["pools"] >= 6
    assert found["rejected"]["worst_error"] < KEY_ERROR
    assert found["accepted"]["worst_error"] < KEY_ERROR
