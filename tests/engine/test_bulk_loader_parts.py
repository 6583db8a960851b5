"""Progress lines, and the stream of what is not loaded in bulk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glm53_exl3.engine import rest_stream
from glm53_exl3.engine.load_progress import LoadProgress, final_line, progress_line
from glm53_exl3.engine.rest_stream import RestStream
from glm53_exl3.pack.safetensors_header import StoredTensor, read_header

GIB = 2**30


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_lines_are_as_documented() -> None:
    assert progress_line(3 * GIB // 2, 4 * GIB, GIB / 4) == "loading weights: 1.50 of 4.00 GiB, 0.25 GiB/s"
    assert final_line(4 * GIB, 2.0) == "loaded weights: 4294967296 bytes in 2.00 s, 2.00 GiB/s"
    document = (Path(__file__).parents[2] / "docs" / "loading.md").read_text(encoding="utf-8")
    for line in (progress_line(3 * GIB // 2, 4 * GIB, GIB / 4), final_line(4 * GIB, 2.0)):
        assert line in document


def test_progress_is_logged_every_few_seconds_with_the_rate_since_the_last_line() -> None:
    lines: list[str] = []
    clock = Clock()
    progress = LoadProgress(lines.append, started=96.0, clock=clock)
    progress.expect(8 * GIB)
    progress.add(GIB)
    clock.seconds = 104.9
    progress.add(GIB)
    assert lines == []
    clock.seconds = 105.0
    progress.add(3 * GIB)
    clock.seconds = 115.0
    progress.add(GIB)
    clock.seconds = 116.0
    progress.add(2 * GIB)
    progress.finish()
    assert lines == [
        "loading weights: 5.00 of 8.00 GiB, 1.00 GiB/s",
        "loading weights: 6.00 of 8.00 GiB, 0.10 GiB/s",
        "loaded weights: 8589934592 bytes in 20.00 s, 0.40 GiB/s",
    ]


@pytest.fixture
def stored(tmp_path: Path) -> list[StoredTensor]:
    for shard, names in (("a", ("x", "y")), ("b", ("z",))):
        save_file(
            {name: torch.full((64, 8), ord(name), dtype=torch.int16) for name in names},
            tmp_path / f"{shard}.safetensors",
        )
    return [tensor for path in sorted(tmp_path.iterdir()) for tensor in read_header(path)]


def test_stream_gives_every_tensor_and_counts_those_that_are_used(stored: list[StoredTensor]) -> None:
    counted: list[int] = []
    stream = RestStream(reversed(stored), lambda name: name != "y", counted.append)
    expected = load_file(stored[0].shard) | load_file(stored[-1].shard)
    found = dict(stream)
    assert list(found) == ["x", "y", "z"]
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert counted == [1024, 1024]
    assert stream.used_bytes == 2048


@pytest.mark.parametrize("drop", [True, False])
def test_stream_reads_ahead_what_is_used_only(
    stored: list[StoredTensor], monkeypatch: pytest.MonkeyPatch, drop: bool
) -> None:
    advice: list[tuple[int, int, int]] = []
    monkeypatch.setattr(rest_stream.os, "posix_fadvise", lambda _, *arguments: advice.append(arguments))
    for _ in RestStream(stored, lambda name: name != "x", lambda _: None, drop):
        pass
    ahead = [(length, kind) for _, length, kind in advice if kind == os.POSIX_FADV_WILLNEED]
    assert ahead == [(1024, os.POSIX_FADV_WILLNEED)] * 2
    first = read_header(stored[0].shard)[1]
    data_begin = stored[0].shard.stat().st_size - 2048
    assert advice[0] == (data_begin + first.start, 1024, os.POSIX_FADV_WILLNEED)
    assert [kind for *_, kind in advice].count(os.POSIX_FADV_DONTNEED) == (2 if drop else 0)


def test_stream_reads_no_further_ahead_than_it_may(stored: list[StoredTensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_stream, "AHEAD_BYTES", 1024)
    advice: list[int] = []
    monkeypatch.setattr(rest_stream.os, "posix_fadvise", lambda *arguments: advice.append(arguments[1]))
    stream = iter(RestStream(stored, lambda _: True, lambda _: None))
    seen = []
    for _ in stream:
        seen.append(len(advice))
    assert seen == [1, 2, 3]
