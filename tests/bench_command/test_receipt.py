"""Receipts on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.receipt import read_receipt, require_writable, write_receipt
from support.receipts import level, receipt


def written(folder: Path) -> Path:
    path = folder / "receipt.json"
    write_receipt(
        path, receipt(level(1, firsts=[0.1 * run + 0.1 / 3 for run in range(7)]), level(4, outcome="timeout"))
    )
    return path


def test_a_receipt_survives_its_file(tmp_path: Path) -> None:
    original = receipt(level(1, firsts=[0.1 / 3, 1e-9, 5e6]), level(2, outcome="broken"), level(8))
    path = tmp_path / "receipt.json"
    write_receipt(path, original)
    assert read_receipt(path) == original
    assert [entry.name for entry in tmp_path.iterdir()] == ["receipt.json"]


def test_figures_of_the_file_are_readable_without_this_program(tmp_path: Path) -> None:
    raw = json.loads(written(tmp_path).read_text())
    assert raw["schema"] == 1
    first, second = raw["levels"]
    assert first["figures"]["first_token_seconds"]["count"] == 7
    assert first["figures"]["outcomes"] == {"answered": 7}
    assert second["figures"]["outcomes"] == {"timeout": 28}
    assert second["figures"]["first_token_seconds"] is None


def _set(*path: str | int, value: Any) -> Callable[[Any], None]:
    def change(raw: Any) -> None:
        for key in path[:-1]:
            raw = raw[key]
        if value is KeyError:
            del raw[path[-1]]
        else:
            raw[path[-1]] = value

    return change


SAMPLE = ("levels", 0, "samples", 0)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_set("kind", value="else"), "JSON of something else"),
        (_set("schema", value=2), "schema 2"),
        (_set("levels", value=KeyError), "no 'levels'"),
        (_set("levels", value={}), "levels is no list"),
        (_set("conditions", "pack", value=KeyError), "no 'pack'"),
        (_set("conditions", "client", "warm_up_runs", value="2"), "warm_up_runs is no number from 0: '2'"),
        (_set("levels", 1, "concurrency", value=0), "concurrency is no number from 1: 0"),
        (_set("levels", 1, "concurrency", value=True), "concurrency is no number from 1: True"),
        (_set(*SAMPLE, "seconds", value=-1.0), "seconds is no time: -1.0"),
        (_set(*SAMPLE, "seconds", value=None), "seconds is no time: None"),
        (_set(*SAMPLE, "outcome", value="fine"), "outcome 'fine'"),
        (_set(*SAMPLE, "completion_tokens", value=KeyError), "no 'completion_tokens'"),
        (_set(*SAMPLE, "first_seconds", value=0.001), "the figures of concurrency 1 are not those of its requests"),
        (
            _set("levels", 0, "figures", "first_token_seconds", "p50", value=0.001),
            "the figures of concurrency 1 are not those of its requests",
        ),
        (_set("levels", 0, "samples", value=[]), "the figures of concurrency 1 are not those of its requests"),
    ],
)
def test_what_is_no_receipt_is_refused_and_why_is_said(
    tmp_path: Path, change: Callable[[Any], None], found: str
) -> None:
    path = written(tmp_path)
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(BenchError, match="receipt-invalid") as caught:
        read_receipt(path)
    assert caught.value.found == found


def test_a_concurrency_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    raw = json.loads(path.read_text())
    raw["levels"].append(raw["levels"][0])
    path.write_text(json.dumps(raw))
    with pytest.raises(BenchError, match="a concurrency is there twice"):
        read_receipt(path)


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode) | st.just(b"[" * 100_000) | st.just(b"NaN"))
def test_no_file_gives_anything_but_a_typed_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("receipt") / "receipt.json"
    path.write_bytes(content)
    with pytest.raises(BenchError, match="receipt-invalid"):
        read_receipt(path)


def test_nan_in_a_receipt_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace('"seconds": 0.5333333333333333', '"seconds": NaN', 1))
    assert "NaN" in path.read_text()
    with pytest.raises(BenchError, match="receipt-invalid"):
        read_receipt(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        read_receipt(tmp_path / "none.json")


def test_an_old_receipt_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="receipt-exists"):
        require_writable(written(tmp_path))


def test_a_missing_folder_is_found_before_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="receipt-write") as caught:
        require_writable(tmp_path / "none" / "receipt.json")
    assert caught.value.hint == f"mkdir -p {tmp_path / 'none'}"


def test_a_new_file_is_fine(tmp_path: Path) -> None:
    require_writable(tmp_path / "receipt.json")
    assert list(tmp_path.iterdir()) == []
