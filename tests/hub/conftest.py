"""A Hub for every test, and nothing of the environment that leads elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from support.fetching import Fetcher
from support.hub_server import Hub, running_hub


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in os.environ:
        if name.lower().endswith("_proxy") or name.startswith(("HF_", "HUGGING")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # The session of the library is shared and was made with the environment of then.
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


@pytest.fixture
def fetcher(hub: Hub, tmp_path: Path) -> Fetcher:
    return Fetcher(hub, tmp_path / "pack")
