"""Wheels of a few bytes, a lock of them, and a wheelhouse made and installed by the real tools."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ROOT / "tools" / "wheelhouse"
PINS_FILE: Final = ROOT / "python" / "src" / "glm53_exl3" / "pins.json"
MACHINE: Final = os.uname().machine
SYSTEM: Final = f"{MACHINE}-linux"
PYTHON: Final = f"cp{sys.version_info.major}{sys.version_info.minor}"
MIT: Final = "Permission is hereby granted, free of charge"


def write_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
    programs: Sequence[str] = (),
    tags: str = "py3-none-any",
    licence: str | None = "MIT",
    terms: Mapping[str, str] | None = None,
) -> Path:
    """Write a wheel that pip installs; `programs` are those of `files` that are executable."""
    distribution = name.replace("-", "_")
    information = f"{distribution}-{version}.dist-info"
    fields = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    fields += [f"License-Expression: {licence}"] if licence else []
    fields += [f"Requires-Dist: {one}" for one in requires]
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tags}\n"
    members = {f"{distribution}.py": b"", **(files or {})}
    members[f"{information}/METADATA"] = "\n".join([*fields, ""]).encode()
    members[f"{information}/WHEEL"] = wheel.encode()
    for file, text in ({"LICENSE": MIT} if terms is None else terms).items():
        members[f"{information}/licenses/{file}"] = text.encode()
    rows = [f"{member},sha256={_urlsafe(content)},{len(content)}" for member, content in members.items()]
    members[f"{information}/RECORD"] = "\n".join([*rows, f"{information}/RECORD,,", ""]).encode()
    path = folder / f"{distribution}-{version}-{tags}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = (0o100755 if member in programs else 0o100644) << 16
            archive.writestr(entry, content)
    return path


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def lock_of(
    wheels: Sequence[Path],
    *,
    runtime: str = "demo",
    python: str = PYTHON,
    system: str = SYSTEM,
    exceptions: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """A lock that has these wheels."""
    entries = {}
    for wheel in wheels:
        distribution, version, *tags = wheel.stem.split("-")
        entries[distribution.replace("_", "-").lower()] = {
            "version": version,
            "distribution": distribution,
            **dict(zip(("python", "abi", "platform"), tags, strict=True)),
            "hash": "sha256-" + base64.b64encode(hashlib.sha256(wheel.read_bytes()).digest()).decode(),
            "size": wheel.stat().st_size,
        }
    return {"runtime": runtime, "python": python, "exceptions": list(exceptions), "systems": {system: entries}}


def make(
    output: Path, lock: Mapping[str, Any], wheels: Sequence[Path], *options: str, system: str = SYSTEM
) -> subprocess.CompletedProcess[str]:
    """Run make.py; the lock is written beside the output."""
    file = output.with_name(f"{output.name}.lock.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(lock), encoding="utf-8")
    fixed = ["--lock", file, "--system", system, "--pins", PINS_FILE, "--output", output]
    command = [sys.executable, "-B", TOOLS / "make.py", *fixed, *options, *wheels]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def made(output: Path, lock: Mapping[str, Any], wheels: Sequence[Path], *options: str, system: str = SYSTEM) -> Path:
    """A wheelhouse."""
    done = make(output, lock, wheels, *options, system=system)
    assert done.returncode == 0, done.stderr
    return output


def pip_variables(index: Path) -> dict[str, str]:
    """What makes pip look into a folder and nowhere else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}


def install(house: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run install.sh with the Python of the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    command = ["sh", str(house / "install.sh"), "--python", sys.executable, *map(str, arguments)]
    return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=120)


def call(code: str, **values: object) -> subprocess.CompletedProcess[str]:
    """Run code with the installer's modules, and with values by name."""
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    script = f"import sys; sys.path.insert(0, {str(TOOLS)!r})\nimport install\nfrom pathlib import Path\n{given}{code}"
    return subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=60)
