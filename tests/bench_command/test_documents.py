"""docs/benchmark.md knows every figure and every kind of failure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from glm53_exl3.bench.answer import NO_FAILURE, Outcome
from glm53_exl3.bench.figures import BY_REQUEST, TOTAL
from glm53_exl3.bench.receipt import SECTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    """What is in backticks in the first column of the table with this heading."""
    rows = TEXT.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_figure_is_described() -> None:
    assert first_cells("figure") == {TOTAL, *BY_REQUEST}


def test_every_kind_of_failure_is_described() -> None:
    assert first_cells("kind") == set(get_args(Outcome)) - NO_FAILURE


def test_every_section_of_conditions_is_described() -> None:
    assert first_cells("section") == set(SECTIONS)


def test_every_verdict_is_described() -> None:
    assert first_cells("verdict") == {"PASS", "FAIL", "INCONCLUSIVE", "NOT TESTED"}
