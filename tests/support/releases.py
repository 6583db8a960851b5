"""Released source archives of vLLM, downloaded once by pip, checked by hash and kept in .cache."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: SHA-256 of each archive, by version.
ARCHIVES: dict[str, str] = json.loads((Path(__file__).parent / "releases.json").read_text(encoding="utf-8"))["vllm"]
_CACHE = ROOT / ".cache" / "sdists"
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


def archive(version: str) -> Path:
    """The source archive of a release; a hash that is not the known one fails the test."""
    path = _CACHE / f"vllm-{version}.tar.gz"
    if not path.exists():
        _download(version, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == ARCHIVES[version], f"{path.name} is not the known file"
    return path


def unpack(version: str, folder: Path, parts: Iterable[str]) -> Path:
    """Unpack the files whose path starts with one of `parts`; the folder of the tree."""
    starts = tuple(f"vllm-{version}/{part}" for part in parts)
    with tarfile.open(archive(version)) as opened:
        opened.extractall(folder, [one for one in opened if one.name.startswith(starts)], filter="data")
    return folder / f"vllm-{version}"


def _download(version: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        package = folder / "setuptools"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "build_meta.py").write_text(_BACKEND)
        options = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", name, f"vllm=={version}"]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"})
        (folder / path.name).replace(path)
