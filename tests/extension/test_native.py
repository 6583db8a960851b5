"""Our own kernels compiled for four kinds of GPU, and what every launch of a variant asks of one; no GPU is needed."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from extension.building import NATIVE_ARCH_LIST, import_by
from extension.pinned_wheels import ROOT

# The first of these tests waits for the whole compilation: 3 minutes on 2 free cores, more where others use them.
pytestmark = pytest.mark.timeout(2400)

HERE = Path(__file__).parent
SOURCES = ROOT / "python" / "csrc" / "native"
DOCUMENT = ROOT / "docs" / "extension.md"
ARCHES = ("sm_80", "sm_90", "sm_120", "sm_121a")
#: Shared memory that a block of a GB10 can have, the least of the four: compute capability 8.0 has 163 KiB, 9.0 227.
MOST_SHARED = 99 * 1024
#: Registers of a multiprocessor, handed out to warps by 256.
REGISTERS, REGISTER_UNIT = 65536, 256
#: What a block gets without asking.
UNASKED = 48 * 1024
IMPORT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, glm53_exl3_kernels as module
tensor = torch.zeros(2, 128, dtype=torch.half)
choice = torch.zeros(2, 1)
layer = {"tables": [torch.zeros(4, dtype=torch.int64)] * 9, "bits": [torch.zeros(4, dtype=torch.uint8)] * 3}
given = {"x": tensor, "expert": choice.int(), "weight": choice, "output": tensor, "tokens": 2, "rate": 2, "codebook": 0,
         "intermediate": 128, "limit": 0.0, **layer}
size = module.scratch_bytes(tokens=2, top_k=1, hidden=128, intermediate=128, experts=4)
errors = []
for scratch in (size - 1, size):
    try:
        module.run_layer(**given, scratch=torch.zeros(scratch, dtype=torch.uint8))
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
print(json.dumps({
    "names": sorted(name for name in vars(module) if not name.startswith("_")),
    "version": module.version, "arch_list": module.arch_list, "errors": errors,
}))
"""


@dataclass(frozen=True)
class Launch:
    """Of a kernel: threads of a block, and bytes of shared memory beside those it always has."""

    kernel: str
    threads: int
    shared: int
    allowed: int


def kernels(native: Path) -> list[dict[str, Any]]:
    record = json.loads((native / "build.json").read_text())
    return [kernel for unit in record["units"] for kernel in unit["kernels"]]


@pytest.fixture(scope="module")
def launches(native: Path, toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> set[Launch]:
    """Of every variant, for batches that take each of its paths."""
    program = tmp_path_factory.mktemp("native") / "launches"
    sources = sorted(SOURCES.glob("variant_*.cu"))
    names = [name for path in sources for name in re.findall(r"(?m)^GLM53_EXL3_VARIANT\((\w+),", path.read_text())]
    assert len(names) == len(sources)
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-DVARIANTS={','.join(names)}"]
    command += [f"-I{SOURCES}", "-isystem", str(toolkit / "include"), "-o", str(program), str(HERE / "launches.cpp")]
    subprocess.run([*command, *(native / "objects" / f"{path.stem}.o" for path in sources)], check=True)
    lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    return {Launch(name, *map(int, numbers)) for name, *numbers in map(str.split, lines)}


def test_the_module_imports_and_says_what_it_is(native: Path, cuda_torch: Path) -> None:
    seen = import_by(IMPORT, native, cuda_torch)
    assert seen["names"] == ["arch_list", "run_layer", "scratch_bytes", "version"]
    assert seen["version"] == tomllib.loads((ROOT / "python" / "pyproject.toml").read_text())["project"]["version"]
    assert seen["arch_list"] == NATIVE_ARCH_LIST
    too_small, on_cpu = seen["errors"]
    assert too_small.startswith("RuntimeError: scratch for fewer tokens or choices")
    assert "cuda" in on_cpu.lower()


def test_every_variant_has_code_for_every_gpu_and_no_other(native: Path, toolkit: Path) -> None:
    units = sorted(path.stem for path in SOURCES.glob("variant_*.cu"))
    assert len(units) >= 9
    for unit in units:
        listed = subprocess.run(
            [toolkit / "bin" / "cuobjdump", "--list-elf", "--list-ptx", native / "objects" / f"{unit}.o"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert sorted(re.findall(r"\.(sm_\w+)\.cubin", listed)) == sorted(ARCHES), unit
        assert "ptx" not in listed.lower().replace("no ptx", ""), unit


def test_every_kernel_that_is_launched_was_compiled_once_for_a_gpu(native: Path, launches: set[Launch]) -> None:
    units = len(list(SOURCES.glob("variant_*.cu")))
    counted = Counter((kernel["name"], kernel["arch"]) for kernel in kernels(native))
    # Those that every variant has alike are in every unit.
    assert set(counted.values()) == {1, units}
    assert set(counted) == {(launch.kernel, arch) for launch in launches for arch in ARCHES}


@pytest.mark.parametrize(("arch", "most"), [("sm_121a", 0), ("sm_120", 0), ("sm_90", 0), ("sm_80", 64)])
def test_kernels_do_not_spill(native: Path, arch: str, most: int) -> None:
    """But for the oldest GPU, whose compiler does without a few bytes."""
    compiled = [kernel for kernel in kernels(native) if kernel["arch"] == arch]
    assert compiled
    assert {one["name"]: one["spill_stores"] for one in compiled if one["spill_stores"] > most} == {}


def test_every_block_fits_a_multiprocessor(native: Path, launches: set[Launch]) -> None:
    taken: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels(native):
        taken.setdefault(kernel["name"], []).append(kernel)
    for launch in launches:
        for kernel in taken[launch.kernel]:
            assert kernel["shared"] + launch.shared <= MOST_SHARED, kernel
            a_warp = -(-kernel["registers"] * 32 // REGISTER_UNIT) * REGISTER_UNIT
            assert a_warp * launch.threads // 32 <= REGISTERS, kernel


def test_every_launch_asks_first_for_more_shared_memory_than_a_block_has(launches: set[Launch]) -> None:
    asking = [launch for launch in launches if launch.shared > UNASKED]
    assert asking
    assert all(launch.allowed >= launch.shared for launch in asking)


def test_registers_and_spills_are_those_of_the_document(native: Path) -> None:
    """Of the GB10; the document shows no other."""
    lines = (native / "resources.md").read_text().splitlines()
    rows = [line for line in lines if not re.search(r"\| sm_(80|90|120) \|", line)]
    assert len(rows) > 30
    assert "\n".join(rows) in DOCUMENT.read_text()
