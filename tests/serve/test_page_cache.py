"""Page cache of real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glm53_exl3.serve import page_cache

SIZE = 8 << 20


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(os.urandom(SIZE + 17))
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return paths


def test_dropped_files_leave_the_cache_and_warmed_ones_come_back(files: list[Path]) -> None:
    assert page_cache.cached_bytes(files) == 2 * (SIZE + 17)
    page_cache.drop(files)
    left = page_cache.cached_bytes(files)
    if left == 2 * (SIZE + 17):
        pytest.skip("this file system keeps its pages (tmpfs, overlay): nothing to drop")
    assert left < SIZE // 4
    assert page_cache.warm(files) == 2 * (SIZE + 17)
    assert page_cache.cached_bytes(files) == 2 * (SIZE + 17)


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert page_cache.cached_bytes([tmp_path / "empty"]) == 0
    assert page_cache.warm([tmp_path / "empty"]) == 0


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    for function in (page_cache.cached_bytes, page_cache.drop, page_cache.warm):
        with pytest.raises(FileNotFoundError):
            function([tmp_path / "missing"])
