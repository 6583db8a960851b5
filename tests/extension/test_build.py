"""exllamav3's kernels: all units compiled by the pinned nvcc for the GB10's sm_121a, linked and imported, on x86_64."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from extension.building import NEIGHBOUR, TOOL, import_by
from extension.pinned_wheels import PINS, ROOT

# The first of these tests waits for the whole compilation: 3 minutes on 2 free cores, more where others use them.
pytestmark = pytest.mark.timeout(2400)

REPORT = ROOT / "python" / "src" / "glm53_exl3" / "probes" / "in_runtime"
DOCUMENT = ROOT / "docs" / "extension.md"
IMPORT = """
import json, sys
sys.path[:0] = sys.argv[1:]
import report, torch, glm53_exl3_exllamav3_ext as module
tensor = torch.zeros(2, 2)
arguments = [tensor] * 9 + [0, 2, 2, 2] + [tensor] * 9 + [True, False] * 3 + [0.0, -1]
errors = []
for given in (arguments, arguments[:-1]):
    try:
        module.exl3_moe(*given)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
print(json.dumps({
    "fact": report.extension(),
    "names": sorted(name for name in vars(module) if not name.startswith("_")),
    "revision": module.source_revision, "arity": module.moe_arity, "arch_list": module.arch_list,
    "errors": errors,
}))
"""
#: Links all objects but one.
LINK_WITHOUT = """
import sys
from pathlib import Path
from compilation import Compiled, link
from toolchain import Toolchain
objects, left_out, torch, target = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
cudart = torch.parent / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
toolchain = Toolchain(None, "", None, "g++", "x86_64-linux-gnu", torch, None, "cp311", cudart)
link([Compiled("", one, 0.0, ()) for one in objects.glob("*.o") if one.name != left_out], toolchain, target)
"""


@pytest.fixture(scope="module")
def module(built: Path) -> Path:
    (path,) = built.glob("*.so")
    return path


def test_every_unit_has_code_for_the_gpu_and_for_no_other(built: Path, toolkit: Path) -> None:
    record = json.loads((built / "build.json").read_text())
    units = [unit["unit"] for unit in record["units"]]
    instances = [unit for unit in units if "exl3_moe_inst_" in unit]
    assert len(instances) == 20
    own = {"binding.cpp", "layer.cpp", "routing.cu"}
    assert set(units) - set(instances) - own == {
        *("quant/exl3_moe.cu", "quant/exl3_devctx.cu", "quant/reconstruct.cu", "quant/hadamard.cu"),
    }
    for unit in [*instances, "routing.cu", "quant/reconstruct.cu", "quant/hadamard.cu"]:
        listed = subprocess.run(
            [toolkit / "bin" / "cuobjdump", "--list-elf", "--list-ptx", built / "objects" / f"{Path(unit).stem}.o"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert re.findall(r"\.(sm_\w+)\.cubin", listed) == ["sm_121a"], unit
        assert "ptx" not in listed.lower().replace("no ptx", ""), unit


def test_the_module_holds_each_instance_of_the_kernel_once(module: Path, toolkit: Path) -> None:
    command = [toolkit / "bin" / "cuobjdump", "-res-usage", module]
    usage = subprocess.run(command, capture_output=True, text=True, check=True)
    text = usage.stdout + usage.stderr
    found = re.findall(r"Function \w*exl3_moe_kernelILi(\d)ELi(\d+)ELi(\d)E\w*:\s*REG:(\d+)", text)
    counted = Counter((int(bits), int(width), int(codebook)) for bits, width, codebook, _ in found)
    assert counted == Counter(itertools.product(range(9), (128, 256), (1, 2)))
    # A block of 512 threads has 65,536 registers; more a thread would fail at the launch.
    assert all(0 < int(registers) <= 128 for *_, registers in found)


def test_registers_and_spills_are_those_of_the_document(built: Path) -> None:
    assert (built / "resources.md").read_text() in DOCUMENT.read_text()


def test_the_module_imports_and_reports_as_preflight_asks(built: Path, cuda_torch: Path) -> None:
    seen = import_by(IMPORT, built, cuda_torch, REPORT)
    functions = [
        "exl3_moe",
        "exl3_moe_max_concurrency",
        "had_r_128",
        "reconstruct",
        "reconstruct_had_slice",
        "run_layer",
    ]
    assert seen["names"] == sorted([*functions, "arch_list", "moe_arity", "source_revision"])
    assert seen["fact"]["missing"] == []
    assert seen["fact"]["arity"] == seen["arity"] == PINS["exllamav3"]["moe_arity"] == 30
    assert (seen["revision"], seen["arch_list"]) == (NEIGHBOUR, PINS["gpu"]["arch_list"])
    on_cpu, too_few = seen["errors"]
    assert "CUDA" in on_cpu
    assert on_cpu.startswith("RuntimeError")
    assert too_few.startswith("TypeError: exl3_moe(): incompatible function arguments")


def test_a_symbol_that_no_library_has_stops_the_link(built: Path, cuda_torch: Path, tmp_path: Path) -> None:
    arguments = (built / "objects", "exl3_devctx.o", cuda_torch, tmp_path / "module.so")
    command = [sys.executable, "-c", LINK_WITHOUT, *map(str, arguments)]
    done = subprocess.run(command, cwd=TOOL, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "link-undefined: " in done.stderr
    assert "symbols of module.so are in no library, first DevCtx::" in done.stderr
