"""Released source archives of vLLM, and the check of a tree as a user runs it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = ROOT / "python" / "src" / "glm53_exl3" / "pins.json"
LOCK = ROOT / "nix" / "locks" / "fork.json"
STAND_IN = ROOT / "tests" / "sources" / "vllm"
_CHECK = ROOT / "tools" / "fork_tree" / "check.py"
_CACHE = ROOT / ".cache" / "sdists"
RELEASES = json.loads((Path(__file__).parent / "data" / "releases.json").read_text(encoding="utf-8"))
#: pip asks the build backend for metadata even of an archive that it only downloads, and vLLM's imports torch.
_BACKEND = """
import email, pathlib, shutil
def get_requires_for_build_wheel(settings=None):
    return []
def prepare_metadata_for_build_wheel(folder, settings=None):
    named = email.message_from_string(pathlib.Path("PKG-INFO").read_text())
    place = pathlib.Path(folder) / f"{named['Name']}-{named['Version']}.dist-info"
    place.mkdir()
    shutil.copyfile("PKG-INFO", place / "METADATA")
    return place.name
"""


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The unpacked source archive of a vLLM release, downloaded once by pip and kept in .cache."""

    def unpacked(version: str) -> Path:
        archive = _CACHE / f"vllm-{version}.tar.gz"
        if not archive.exists():
            _download(version, archive, tmp_path_factory.mktemp("backend"))
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == RELEASES[version]["sha256"]
        folder = tmp_path_factory.mktemp("release")
        with tarfile.open(archive) as opened:
            wanted = (f"vllm-{version}/{part}" for part in ("CMakeLists.txt", "cmake", "requirements", "tools"))
            starts = (*wanted, f"vllm-{version}/setup.py", f"vllm-{version}/pyproject.toml")
            opened.extractall(folder, [one for one in opened if one.name.startswith(starts)], filter="data")
        return folder / f"vllm-{version}"

    return unpacked


def _download(version: str, archive: Path, backend: Path) -> None:
    package = backend / "setuptools"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "build_meta.py").write_text(_BACKEND)
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(backend), f"vllm=={version}"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(backend), "PYTHONDONTWRITEBYTECODE": "1"})
    archive.parent.mkdir(parents=True, exist_ok=True)
    (backend / archive.name).replace(archive)


@pytest.fixture
def check_tree() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs tools/fork_tree/check.py on a tree, with the pins of the repository unless others are named."""

    def run(tree: Path, *options: str, pins: Path = PINS, lock: Path = LOCK) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(_CHECK), str(tree), "--pins", str(pins), "--lock", str(lock), *options]
        return subprocess.run(command, capture_output=True, text=True)

    return run
