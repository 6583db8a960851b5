"""Small wheels of the locks, fetched by pip: their bytes and METADATA are what the locks say.

pip is another reader than the one that made the locks. The only test here that uses the package index.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from runtime_files import ROOT
from wheel_files import TARGETS, sri

NAMES = ("aiohttp", "jinja2", "pydantic", "uvicorn", "watchfiles")
SPARK = TARGETS["aarch64-linux"]


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    locked = json.loads((ROOT / "nix/locks/upstream.json").read_text(encoding="utf-8"))["systems"]["aarch64-linux"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder]
    command += [
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        "--abi",
        "cp312",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    for platform in dict.fromkeys(tag.platform for tag in SPARK.tags if tag.platform != "any"):
        command += ["--platform", platform]
    command += [f"{name}=={locked[name]['version']}" for name in NAMES]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runtime", ["fork", "upstream", "demo"])
def test_the_lock_says_what_the_wheel_says(fetched: Path, runtime: str, name: str) -> None:
    lock = json.loads((ROOT / f"nix/locks/{runtime}.json").read_text(encoding="utf-8"))
    entry = lock["systems"]["aarch64-linux"][name]
    tags = f"{entry['python']}-{entry['abi']}-{entry['platform']}"
    file = fetched / f"{entry['distribution']}-{entry['version']}-{tags}.whl"
    content = file.read_bytes()
    assert sri(hashlib.sha256(content).hexdigest()) == entry["hash"]
    assert len(content) == entry["size"]
    with zipfile.ZipFile(file) as archive:
        inside = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(archive.read(inside)).get_all("Requires-Dist", [])
    holding = set()
    for line in lines:
        requirement = Requirement(line)
        marker, requirement.marker = requirement.marker, None
        environments = [{**SPARK.environment, "extra": extra} for extra in ("", *entry.get("extras", ()))]
        if marker is None or any(marker.evaluate(environment) for environment in environments):
            holding.add(str(requirement))
    assert set(entry["requires"]) == holding
