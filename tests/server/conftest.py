"""A real vLLM server for each test module that wants one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.cli.demo import demo_command, demo_settings
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.process import ServerProcess

START_SECONDS = 300


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Context manager that serves a pack: `with start_server(model=..., tensor_parallel=2) as server`."""

    @contextmanager
    def start(model: Path | None = None, **changes: Any) -> Iterator[ServerProcess]:
        settings = replace(demo_settings(model or demo_pack(), free_port()), **changes)
        log_path = tmp_path_factory.mktemp("server") / "vllm.log"
        with ServerProcess(demo_command(settings), log_path) as server:
            server.wait_healthy(START_SECONDS)
            yield server

    return start
