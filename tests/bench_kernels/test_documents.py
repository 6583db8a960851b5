"""docs/performance.md knows every option, backend and column."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from bench_kernels.results import cell, result, row
from glm53_exl3.bench_kernels.__main__ import parser
from glm53_exl3.bench_kernels.backends import known_backends
from glm53_exl3.bench_kernels.report import table_lines

TEXT = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    rows = TEXT.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return {name for one in rows for name in re.findall(r"`([^`]+)`", one.split("|")[1])}


def test_every_option_is_described() -> None:
    known = {name for action in parser()._actions for name in action.option_strings} - {"-h", "--help"}
    assert first_cells("option") == known


def test_every_backend_is_described() -> None:
    assert first_cells("backend") == set(known_backends(torch.device("cuda")))


def test_every_column_is_described() -> None:
    names = known_backends(torch.device("cuda"))
    heading = table_lines(result(row(1, **{name: cell(1.0) for name in names})))[1]
    columns = {column for column in re.split(r"\s{2,}", heading.strip()) if column}
    assert columns == first_cells("column")
