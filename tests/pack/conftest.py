"""One pack of 120 shards for the tests of a session that only read it or link to it."""

from pathlib import Path

import pytest

from support.synthetic_pack import write_synthetic_pack


@pytest.fixture(scope="session")
def full_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The K2 pack without its weights. Not to be changed: use `link_pack`."""
    return write_synthetic_pack(tmp_path_factory.mktemp("k2") / "full")
