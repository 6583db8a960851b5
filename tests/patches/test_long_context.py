"""Prompts of some hundred thousand tokens: kernels compiled before serving, and the pages of the indexer's cache."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Measure = Callable[..., dict[str, Any]]
Tree = Callable[[str], Path]

#: Length of a prompt and MiB for the indexer's logits, vLLM's 512 or this project's 64, where a step of 2,048 tokens
#: stays whole and where it is cut into slices of its queries.
_WHOLE = [(8_192, 64), (32_768, 64), (262_144, 512)]
_CUT = [(33_024, 64), (65_536, 64), (200_000, 64), (262_400, 512), (300_000, 512)]
_METADATA_PATCH = Path(__file__).parents[2] / "patches" / "vllm" / "0030-compile-metadata-kernel-once.patch"


@pytest.fixture(scope="module")
def base_of_fork(release: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.29.0, whose warm-up of the metadata kernel is the pinned commit's, with the patch."""
    tree = Path(shutil.copytree(release("0.29.0"), tmp_path_factory.mktemp("base") / "vllm"))
    command = ["patch", "-p1", "--fuzz=0", "--batch", "--forward", "--input", str(_METADATA_PATCH)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    return tree


def _slices(length: int, budget: int) -> list[int]:
    """Where slices begin that hold as many queries as logits of four bytes, for each four tokens, fit."""
    return list(range(0, 2048, budget * 2**20 // 4 // (length // 4)))


def _compiled_in_a_request(measure: Measure, tree: Path | None) -> tuple[int, set[int]]:
    """How many kernels the warm-up compiles; and the beginnings of slices for which there is none among them."""
    found = measure("metadata_keys", tree, alone=True, steps=_WHOLE + _CUT)
    for request in (0, 1):
        starts = [[*one["step"], one["start"]] for one in found["launched"] if one["request"] == request]
        assert starts == [[*step, start] for step in _WHOLE + _CUT for start in _slices(*step)]
    ready = set(found["warmed"])
    return len(ready), {one["start"] for one in found["launched"] if one["key"] not in ready}


def test_any_query_slice_finds_its_kernel_compiled(measure: Measure, release: Tree, base_of_fork: Path) -> None:
    starts = {start for step in _WHOLE + _CUT for start in _slices(*step)}
    without = {start for start in starts if start > 1 and start % 16}
    assert len(starts) > len(without) + 1 > 6, "slices of every kind"
    assert _compiled_in_a_request(measure, release("0.29.0")) == (12, without)
    assert _compiled_in_a_request(measure, base_of_fork) == (2, set()), "one kernel for each alignment of its input"
    for upstream in (release("0.30.0"), None):
        assert _compiled_in_a_request(measure, upstream) == (36, set())


def _page(blocks: list[int], position: int, block: int, page: int) -> int:
    """The page of the indexer's cache that holds a position; a block of the manager is several pages in a row."""
    return blocks[position // block] * (block // page) + position % block // page


def _misplaced(found: dict[str, Any], start: int, blocks: list[int], got: dict[str, Any]) -> tuple[int, int]:
    """How many tokens of a step are written to another slot than theirs, and how many pages are read elsewhere."""
    block, page, kpool = (int(found[name]) for name in ("block", "page", "kpool"))
    end = start + int(found["chunk"])
    assert block % page == 0
    written = [
        _page(blocks, one, block, page) * (page // kpool) + one % page // kpool if one % kpool == kpool - 1 else -1
        for one in range(start, end)
    ]
    read = [_page(blocks, one, block, page) for one in range(0, end, page)]
    assert len(got["written"]) == len(written)
    assert len(got["read"]) >= len(read)
    wrong_writes = sum(a != b for a, b in zip(got["written"], written, strict=True))
    return wrong_writes, sum(a != b for a, b in zip(got["read"], read, strict=False))


#: Blocks of a request, in no order, and where steps of its prompt begin: from 131,328 tokens a server crashed where the
#: slots were counted in other units than the pages (guqiong96/Lvllm#109).
_BLOCKS = [7 * one % 41 + 1 for one in range(40)]
_STARTS = [0, 32_768, 130_816, 131_328, 200_192, 261_632]


@pytest.mark.parametrize("version", ["0.30.0", None])
def test_pooled_keys_lie_in_the_pages_of_the_request(measure: Measure, release: Tree, version: str | None) -> None:
    found = measure("units_slots", release(version) if version else None, starts=_STARTS, blocks=_BLOCKS)
    for start, got in zip(_STARTS, found["chunks"], strict=True):
        assert _misplaced(found, start, _BLOCKS, got) == (0, 0), start


def test_pooled_keys_are_misplaced_in_pages_of_the_kernels_blocks(
    measure: Measure, damaged: Callable[[str, str], Path]
) -> None:
    # Only where the index stays within the table: beyond it the kernel reads memory that is not its own.
    starts = [256, 32_768]
    found = measure("units_slots", damaged("0.30.0", "long-slot-units"), starts=starts, blocks=_BLOCKS)
    for start, got in zip(starts, found["chunks"], strict=True):
        assert _misplaced(found, start, _BLOCKS, got) == (found["chunk"] // found["kpool"], 0), start
