"""What both extensions have in common: libraries, paths, wheels and bytes that repeat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from extension.building import LINKED, NATIVE_ARCH_LIST, NEIGHBOUR, build, import_by
from extension.pinned_wheels import ROOT

# The first of these tests waits for a whole compilation, which others may have done before.
pytestmark = pytest.mark.timeout(2400)

VERSION = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]["version"]
IMPORT = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import torch
module = importlib.import_module(sys.argv[2])
print(json.dumps({"file": module.__file__, "arch_list": module.arch_list}))
"""


@dataclass(frozen=True)
class Built:
    """One build, and how to repeat a part of it."""

    folder: Path
    product: str
    module: str
    version: str
    arguments: tuple[str | Path, ...]
    #: A small one of each kind that could hold what differs between builds.
    units: tuple[str, ...]

    def file(self, end: str) -> Path:
        (path,) = self.folder.glob(f"{self.module}*.{end}")
        return path


@pytest.fixture(scope="module", params=["exllamav3", "native"])
def one(request: pytest.FixtureRequest) -> Built:
    if request.param == "native":
        arguments: tuple[str | Path, ...] = ("--arch", NATIVE_ARCH_LIST)
        folder = request.getfixturevalue("native")
        return Built(folder, "native", "glm53_exl3_kernels", VERSION, arguments, ("variant_k2_mcg",))
    arguments = ("--source", request.getfixturevalue("kernels"), "--revision", NEIGHBOUR)
    # The second has anonymous namespaces, which nvcc names by a hash of its options.
    units = ("exl3_moe_inst_k7_cb1", "exl3_devctx")
    folder = request.getfixturevalue("built")
    return Built(folder, "exllamav3", "glm53_exl3_exllamav3_ext", NEIGHBOUR, arguments, units)


def test_the_module_needs_only_what_torch_brings(one: Built) -> None:
    dynamic = subprocess.run(["readelf", "-d", one.file("so")], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", dynamic))
    system = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    assert needed - system == {f"lib{name}.so" for name in LINKED} | {"libcudart.so.13"}
    assert "[$ORIGIN/torch/lib:$ORIGIN/nvidia/cu13/lib]" in dynamic


def test_the_module_carries_no_path_of_this_machine(one: Built) -> None:
    text = one.file("so").read_bytes()
    assert str(ROOT).encode() not in text
    assert b"/tmp/" not in text


def test_the_wheel_installs_and_imports(one: Built, cuda_torch: Path, tmp_path: Path) -> None:
    wheel = one.file("whl")
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name == f"{one.module}-{one.version}-{tag}-{tag}-linux_x86_64.whl"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path, wheel], check=True, env={**os.environ, "PIP_FIND_LINKS": ""})
    assert import_by(IMPORT, tmp_path, cuda_torch, one.module)["file"].startswith(str(tmp_path))


def test_units_compile_to_the_same_bytes_in_another_output_folder(
    one: Built, toolkit: Path, cuda_torch: Path, tmp_path: Path
) -> None:
    done = build(
        *(one.product, *one.arguments, "--output", tmp_path, "--objects-only", "--units", *one.units),
        *("--cuda-home", toolkit, "--torch", cuda_torch),
    )
    assert done.returncode == 0, done.stderr
    for unit in one.units:
        stripped = []
        for folder in (one.folder, tmp_path):
            stripped.append(tmp_path / f"{unit}-{len(stripped)}.o")
            # nvcc leaves the random name of a temporary file in the local symbols, which the module does not keep.
            command = ["strip", "--strip-unneeded", "-o", stripped[-1], folder / "objects" / f"{unit}.o"]
            subprocess.run(command, check=True)
        assert stripped[0].read_bytes() == stripped[1].read_bytes(), unit
