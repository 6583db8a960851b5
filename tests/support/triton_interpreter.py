"""Triton beside the environment: its kernels run in its own interpreter, on a machine without a GPU.

It is not installed into the environment, where vLLM would take it for a sign of a GPU.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from support.programs import lacking

ROOT = Path(__file__).parents[2]
_CACHE = ROOT / ".cache" / "triton"
_HASHES: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "releases.json").read_text())["triton"]
#: Compilers and profilers for GPUs, half of the wheel; the interpreter needs none of them.
_LEFT_OUT = ("triton/backends/nvidia/bin/", "triton/backends/nvidia/lib/cupti/", "triton/FileCheck", "triton/profiler/")


def triton() -> Path:
    """Folder with the package triton of the pinned version, for PYTHONPATH."""
    version = json.loads((ROOT / "python" / "src" / "glm53_exl3" / "pins.json").read_text())["triton"]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folder = _CACHE / f"{version}-{tag}"
    if not folder.is_dir():
        if platform.machine() != "x86_64" or tag not in _HASHES[version]:
            lacking(f"the hash of triton {version} for {tag} on {platform.machine()} is not known to the tests")
        _install(version, _HASHES[version][tag], folder)
    return folder


def _install(version: str, digest: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--only-binary=:all:", "--dest", name, f"triton=={version}"], check=True)
        (wheel,) = Path(name).glob("*.whl")
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == digest, f"{wheel.name} is not the known file"
        with zipfile.ZipFile(wheel) as opened:
            wanted = [one for one in opened.namelist() if not one.startswith(_LEFT_OUT)]
            opened.extractall(Path(name) / "unpacked", wanted)
        (Path(name) / "unpacked").rename(folder)
