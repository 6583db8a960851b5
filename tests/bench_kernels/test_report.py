"""The table, the receipt, and the verdict on errors, of results made by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from bench_kernels.results import cell, result, row, spread
from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.report import number
from glm53_exl3.bench_kernels.report import head_lines, table_lines, time_text
from glm53_exl3.bench_kernels.result import Cell, require_right


def test_a_row_has_times_ratios_error_and_overhead() -> None:
    found = result(row(1, exllamav3=cell(300.0), exl3_moe=cell(296.0, 9e-4)))
    lines = table_lines(found)
    assert lines[0] == "microseconds of a call, median (p10-p90)"
    heading = ["T", "experts", "bytes", "gemm"]
    for name in ("exllamav3", "exl3_moe"):
        heading += [name, "x", "bytes", "x", "gemm", "error"]
    assert lines[1].split() == [*heading, "exllamav3", "over", "exl3_moe"]
    # 50 MB at 4 TB/s are 12.5 us; 300 / 12.5 = 24; 300 / 150 = 2.
    cells = lines[2].split("  ")
    found_cells = [each.strip() for each in cells if each.strip()]
    assert found_cells == [
        "1", "8.0", "12.5", "150.0 (149.0-152.0)",
        "300.0 (299.0-302.0)", "24", "2", "1.0e-03",
        "296.0 (295.0-298.0)", "23.7", "1.97", "9.0e-04",
        "+4.0 us (+1.4%)",
    ]  # fmt: skip
    assert lines[3:] == ["exllamav3: built", "exl3_moe: built"]


def test_what_others_take_is_told_in_times_of_native() -> None:
    found = result(
        row(1, native=cell(60.0), exllamav3=cell(300.0), decoded=replace(cell(90.0), tolerance=None)),
        row(8, native=cell(400.0), exllamav3=cell(1000.0), decoded=replace(cell(5000.0), tolerance=None)),
    )
    lines = table_lines(found)
    assert lines[1].split()[-6:] == ["exllamav3", "/", "native", "decoded", "/", "native"]
    assert [line.split()[-2:] for line in lines[2:4]] == [["5", "1.5"], ["2.5", "12.5"]]
    rows = json.loads(json.dumps(found.to_json(), allow_nan=False))["rows"]
    assert rows[1]["over_native"] == {"exllamav3": 2.5, "decoded": 12.5}
    assert result(row(1, exllamav3=cell(300.0))).to_json()["rows"][0]["over_native"] == {}


def test_outputs_that_mean_nothing_are_not_judged() -> None:
    found = result(row(1, decoded=Cell(spread(90.0), "graph", math.inf, None), native=cell(60.0)))
    require_right(found)
    (line,) = (line for line in table_lines(found) if line.split()[0] == "1")
    assert "90.0 (89.0-92.0)" in line
    assert "not finite" not in line
    decoded = found.to_json()["rows"][0]["backends"]["decoded"]
    assert (decoded["error"], decoded["tolerance"]) == (None, None)
    wrong = result(row(1, decoded=Cell(spread(90.0), "graph", 1.0, None), native=cell(60.0, 0.1)))
    with pytest.raises(BenchError, match=r"native at T=1 by 0\.1\n"):
        require_right(wrong)


def test_no_overhead_without_both_and_no_ratio_without_a_floor() -> None:
    lines = table_lines(result(row(1, gemm=None, native=cell(60.0)), left_out={"exllamav3": "no extension"}))
    assert "over" not in lines[1]
    assert lines[2].split() == ["1", "8.0", "12.5", "-", "60.0", "(59.0-62.0)", "4.8", "-", "1.0e-03"]
    assert lines[-1] == "left out: exllamav3: no extension"


def test_what_a_reader_has_to_know_is_below_the_table() -> None:
    lines = table_lines(result(row(1, cold=False, reference=cell(2e4, clock="wall")), row(2, reference=cell(3e4))))
    assert lines[2].split()[0] == "1*"
    assert lines[3].split()[0] == "2"
    assert lines[4].startswith("* the weights of a replay are fewer than four times the L2 cache")
    assert lines[5] == "by the wall clock, launches and waiting included: reference"


def test_large_times_have_no_tenths() -> None:
    assert time_text(cell(12345.6).microseconds) == f"{number(12345.6)} (12345-12348)"
    assert time_text(None) == "-"


def test_the_head_says_where_and_what() -> None:
    lines = head_lines(result(row(1, exllamav3=cell(300.0))))
    assert lines[0] == "machine  NVIDIA H200 (9.0), 132 SMs, L2 60 MiB, driver 580.1, torch 2.11.0, CUDA 13.0"
    assert lines[1].endswith("experts 288, top 8, bits 2-3-2, mcg, limit 10")
    assert lines[3].endswith("at the 4000 GB/s of a copy")
    assert lines[-1] == "kernels  exllamav3 rrrrrrrr, sm 9.0a"
    with_native = result(row(1, native=cell(60.0)))
    native = {"version": "0.1.0", "arch_list": "12.1a"}
    lines = head_lines(replace(with_native, machine={**with_native.machine, "native": native}))
    assert lines[-2:] == ["kernels  exllamav3 rrrrrrrr, sm 9.0a", "kernels  native 0.1.0, sm 12.1a"]
    assert head_lines(result(gpu=False))[0] == "machine  a CPU, 2 threads, torch 2.11.0, CUDA none"


def test_the_receipt_has_every_spread_and_is_strict_json() -> None:
    found = result(row(1, exllamav3=cell(300.0), reference=cell(4e4, math.inf)))
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (document["kind"], document["schema"]) == ("glm53-exl3 bench kernels", 1)
    (only,) = document["rows"]
    assert only["bytes_floor_microseconds"] == pytest.approx(12.5)
    assert only["gemm_microseconds"] == {"p10": 149.0, "p50": 150.0, "p90": 152.0, "count": 30}
    assert only["backends"]["exllamav3"] == {
        "microseconds": {"p10": 299.0, "p50": 300.0, "p90": 302.0, "count": 30},
        "clock": "graph",
        "error": 1e-3,
        "tolerance": 5e-3,
    }
    assert only["backends"]["reference"]["error"] is None


def test_an_error_at_the_tolerance_is_right() -> None:
    require_right(result(row(1, exllamav3=cell(300.0, 5e-3))))


@pytest.mark.parametrize(("error", "text"), [(6e-3, "6.0e-03"), (math.inf, "not finite")])
def test_a_wrong_backend_is_named_with_its_batch(error: float, text: str) -> None:
    found = result(row(1, exllamav3=cell(300.0)), row(64, exllamav3=cell(900.0, error)))
    assert f"WRONG {text}" in table_lines(found)[3]
    with pytest.raises(BenchError, match=r"exllamav3 at T=64 by") as caught:
        require_right(found)
    assert caught.value.id == "kernel-wrong"
    assert "T=1 " not in caught.value.what


def test_a_backend_may_have_a_tolerance_of_its_own() -> None:
    require_right(result(row(1, reference=replace(cell(300.0, 8e-3), tolerance=1e-2))))
