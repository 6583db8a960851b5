"""Patch 0020: Glm5Next gives an EAGLE3 or DFlash2 draft the states of the layers that the draft asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Measure = Callable[..., dict[str, Any]]
Tree = Callable[[str], Path]

#: In units of the root mean square. bfloat16 rounding gives at most 0.008 over 45 layers; the sum of output and
#: residual, which is right for other models, is at least 0.11 away, the states of other layers 1.2.
_ROUNDING, _SUM, _OTHER_LAYER = 0.02, 0.08, 0.8


@pytest.fixture(params=["0.30.0 patched", "0.32.0"])
def found(request: pytest.FixtureRequest, measure: Measure, patched: Tree) -> dict[str, Any]:
    return measure("eagle3_states", patched("0.30.0") if request.param == "0.30.0 patched" else None)


def test_eagle3_unpatched_is_refused(measure: Measure, release: Tree) -> None:
    found = measure("eagle3_states", release("0.30.0"))

    assert found["supports"] == [False, False]
    assert found["refusals"] == ["Model does not support EAGLE3 interface"] * 2


def test_eagle3_text_and_multimodal_model_take_layers(found: dict[str, Any]) -> None:
    assert found["supports"] == [True, True]
    assert found["refusals"] == ["", ""]
    assert found["default"] == [2, 22, 42]


def test_eagle3_states_are_means_of_complete_streams(found: dict[str, Any]) -> None:
    draft = found["draft"]

    assert found["layers"] == [6, 15, 25, 34, 43]
    assert draft["shapes"] == [[5, 32]] * 5
    assert draft["dtypes"] == ["torch.bfloat16"] * 5
    assert max(draft["distances"]) < _ROUNDING
    assert min(draft["distances_to_sums"]) > _SUM
    assert min(draft["distances_to_others"]) > _OTHER_LAYER


def test_eagle3_first_and_last_state_need_no_streams(found: dict[str, Any]) -> None:
    ends = found["ends"]

    assert ends["shapes"] == [[5, 32]] * 4
    assert ends["distances"][0] == 0  # What the embedding gives, before it becomes streams.
    assert max(ends["distances"]) < _ROUNDING
    assert min(ends["distances_to_others"]) > _OTHER_LAYER


def test_eagle3_sequence_parallel_states_are_whole(found: dict[str, Any]) -> None:
    assert found["sharded"]["shapes"] == [[5, 32]] * 5
    assert max(found["sharded"]["distances"]) < _ROUNDING


def test_eagle3_states_leave_the_output_alone(measure: Measure, release: Tree, found: dict[str, Any]) -> None:
    unpatched = measure("eagle3_states", release("0.30.0"))

    assert found["unchanged"] is True
    assert found["plain"] == unpatched["plain"]
    assert found["plain"]["states"] is None
    assert max(found["draft"]["final"], found["ends"]["final"]) < _ROUNDING
