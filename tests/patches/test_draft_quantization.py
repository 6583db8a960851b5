"""Patch 0021: a draft that is quantized while it is loaded computes the K/V of its context from dense weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Measure = Callable[..., dict[str, Any]]
Tree = Callable[[str], Path]

_DENSE, _FP8 = "torch.bfloat16", "torch.float8_e4m3fn"
#: Root mean square of the error of the context K/V: bfloat16 gives 0.0027, FP8 weights 0.027.
_DENSE_ERROR, _FP8_ERROR = 0.005, 0.04

drafts = pytest.mark.parametrize("draft", ["dflash", "dflash2"])


@drafts
def test_draft_quantization_unpatched_context_fails(measure: Measure, release: Tree, draft: str) -> None:
    found = measure("draft_quantization", release("0.30.0"))[draft]

    assert found["formats"]["qkv_proj"] == _FP8
    assert "cannot be multiplied" in found["context"]["error"]


@drafts
def test_draft_quantization_patched_keeps_attention_dense(measure: Measure, patched: Tree, draft: str) -> None:
    found = measure("draft_quantization", patched("0.30.0"))[draft]

    assert found["formats"] == {
        "qkv_proj": _DENSE,
        "o_proj": _DENSE,
        "gate_up_proj": _FP8,
        "down_proj": _FP8,
        "fc": _FP8,
    }
    assert found["context"]["error"] is None
    assert max(found["context"]["k"], found["context"]["v"]) < _DENSE_ERROR


@drafts
def test_draft_quantization_upstream_context_is_right(measure: Measure, draft: str) -> None:
    """From 0.31.0 on, QKV are FP8 too and the context goes through their quantization method."""
    found = measure("draft_quantization", None)[draft]

    assert set(found["formats"].values()) == {_FP8}
    assert found["context"]["error"] is None
    assert _DENSE_ERROR < max(found["context"]["k"], found["context"]["v"]) < _FP8_ERROR


def test_draft_quantization_patched_leaves_quantized_checkpoints(
    measure: Measure, release: Tree, patched: Tree
) -> None:
    unpatched = measure("draft_quantization", release("0.30.0"))["on_disk"]

    assert unpatched == {"qkv_proj": True, "o_proj": True, "fc": True}
    assert measure("draft_quantization", patched("0.30.0"))["on_disk"] == unpatched
