"""The wheel that is installed: it builds, holds its data, and every module of it imports."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import importlib, pkgutil, sys
import glm53_exl3
assert glm53_exl3.__file__.startswith(sys.argv[1]), glm53_exl3.__file__
for module in pkgutil.walk_packages(glm53_exl3.__path__, "glm53_exl3."):
    if not module.name.startswith("glm53_exl3.engine"):
        importlib.import_module(module.name)
from glm53_exl3.pins import load_pins
print(load_pins().torch)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "--wheel-dir", target, ROOT / "python"], check=True)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "unpacked")
    return target / "unpacked"


def test_every_module_of_the_wheel_imports_from_it(unpacked: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", IMPORT_ALL, str(unpacked)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "2.13.0\n"


def test_every_module_of_the_wheel_compiles(unpacked: Path) -> None:
    files = sorted(unpacked.rglob("*.py"))
    assert len(files) > 40
    for path in files:
        compile(path.read_text(encoding="utf-8"), path.name, "exec")


def test_the_wheel_has_both_entry_points_and_its_data(unpacked: Path) -> None:
    (points,) = unpacked.glob("*.dist-info/entry_points.txt")
    text = points.read_text()
    assert "[vllm.general_plugins]\nglm53_exl3=glm53_exl3.engine:register" in text
    assert "glm53-exl3=glm53_exl3.cli.entry:main" in text
    for data in ("pins.json", "demo/faq.json", "demo/pack/config.json"):
        assert (unpacked / "glm53_exl3" / data).is_file(), data
