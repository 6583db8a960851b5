"""The host code for the GB10's processor, with Debian's cross compiler and torch's aarch64 wheel."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from extension.building import NEIGHBOUR, build, torch_of
from support.programs import lacking

COMPILER = "aarch64-linux-gnu-g++"
#: Of each product one of each kind: the binding, a unit that includes torch, and an instance, that of two bits.
UNITS = {
    "exllamav3": ("binding", "exl3_devctx", "exl3_moe_inst_k2_cb1"),
    "native": ("binding", "layer", "variant_k2_mcg"),
}


@pytest.mark.parametrize("product", UNITS)
def test_host_code_compiles_for_aarch64(product: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        lacking(f"no {COMPILER}; apt-get install g++-aarch64-linux-gnu")
    toolkit = request.getfixturevalue("toolkit")
    source = ("--source", request.getfixturevalue("kernels"), "--revision", NEIGHBOUR) if product == "exllamav3" else ()
    done = build(
        *(product, *source, "--output", tmp_path, "--objects-only", "--units", *UNITS[product]),
        *("--cuda-home", toolkit, "--torch", torch_of("aarch64-linux"), "--host-compiler", COMPILER),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "build.json").read_text())["target"] == "aarch64-linux-gnu"
    for unit in UNITS[product]:
        header = subprocess.run(
            ["readelf", "-h", tmp_path / "objects" / f"{unit}.o"], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(r"Machine:\s+AArch64", header), unit
    listed = subprocess.run(
        [toolkit / "bin" / "cuobjdump", "--list-elf", tmp_path / "objects" / f"{UNITS[product][-1]}.o"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.findall(r"\.(sm_\w+)\.cubin", listed) == ["sm_121a"]
