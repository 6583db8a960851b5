"""Released source archives of vLLM, and the check of a tree as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.releases import unpack

ROOT = Path(__file__).parents[2]
PINS = ROOT / "python" / "src" / "glm53_exl3" / "pins.json"
LOCK = ROOT / "nix" / "locks" / "fork.json"
STAND_IN = ROOT / "tests" / "sources" / "vllm"
_CHECK = ROOT / "tools" / "fork_tree" / "check.py"
RELEASES = json.loads((Path(__file__).parent / "data" / "releases.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What the check reads of the source archive of a vLLM release."""

    def unpacked(version: str) -> Path:
        parts = ("CMakeLists.txt", "cmake", "requirements", "tools", "setup.py", "pyproject.toml")
        return unpack(version, tmp_path_factory.mktemp("release"), parts)

    return unpacked


@pytest.fixture
def check_tree() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs tools/fork_tree/check.py on a tree, with the pins of the repository unless others are named."""

    def run(tree: Path, *options: str, pins: Path = PINS, lock: Path = LOCK) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(_CHECK), str(tree), "--pins", str(pins), "--lock", str(lock), *options]
        return subprocess.run(command, capture_output=True, text=True)

    return run
