"""The pinned wheels, through pip and checked against the pins, kept in .cache from run to run."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.programs import lacking

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "extension"
PINS: dict[str, Any] = json.loads((ROOT / "python" / "src" / "glm53_exl3" / "pins.json").read_text())


def pinned_file(distribution: str, system: str) -> tuple[str, dict[str, str]]:
    """Version and file of the only pinned version."""
    ((version, files),) = PINS["wheels"][distribution].items()
    return version, files.get("any") or files[system]


def fetch(distribution: str, system: str) -> Path:
    """The wheel, downloaded once; its hash is that of the pins or the test fails."""
    version, file = pinned_file(distribution, system)
    tags = [file[key] for key in ("python", "abi", "platform")]
    path = CACHE / "wheels" / "-".join([file["distribution"], version, *tags])
    path = path.with_name(path.name + ".whl")
    if not path.is_file():
        _download(distribution, version, file, path)
    digest = base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
    assert f"sha256-{digest}" == file["hash"], f"{path.name} is not the pinned file"
    return path


def _download(distribution: str, version: str, file: dict[str, str], path: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(path.parent), "--implementation", "py"]
    for platform in file["platform"].split("."):
        command += ["--platform", platform]
    if file["abi"] != "none":
        command += [
            "--implementation",
            "cp",
            "--abi",
            file["abi"],
            "--python-version",
            file["python"].removeprefix("cp"),
        ]
    # Three signs: 2.13.0+cpu, which a machine may offer as well, is another wheel.
    done = subprocess.run([*command, f"{distribution}==={version}"], capture_output=True, text=True, check=False)
    if not path.is_file():
        lacking(f"pip does not give {path.name}: {done.stderr.strip()[-300:]}")


def unpack(name: str, wheels: Iterable[tuple[Path, tuple[str, ...]]]) -> Path:
    """A folder with the chosen parts of some wheels, as pip would lay them beside each other.

    Args:
        name: of the folder; a change of the wheels changes it too.
        wheels: each with the beginnings of the members wanted.
    """
    wheels = list(wheels)
    digest = hashlib.sha256("".join(f"{path.name}{parts}" for path, parts in wheels).encode()).hexdigest()[:8]
    folder = CACHE / f"{name}-{digest}"
    if not (folder / ".complete").is_file():
        for path, parts in wheels:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if member.filename.startswith(parts):
                        # Compilers have to stay executable, which extract() forgets.
                        Path(archive.extract(member, folder)).chmod(member.external_attr >> 16 & 0o777 or 0o644)
        (folder / ".complete").touch()
    return folder
