"""All units compiled by the pinned nvcc for the GB10's sm_121a, linked, packed and imported, on x86_64."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extension.building import LINKED, NEIGHBOUR, TOOL, build
from extension.pinned_wheels import PINS, ROOT

# The first of these tests waits for the whole compilation: 3 minutes on 2 free cores, more where others use them.
pytestmark = pytest.mark.timeout(2400)

REPORT = ROOT / "python" / "src" / "glm53_exl3" / "probes" / "in_runtime"
DOCUMENT = ROOT / "docs" / "extension.md"
#: The CPU build of torch of this environment lacks libc10_cuda, which is taken from the pinned wheel.
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


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def imported(folder: Path, torch: Path) -> dict[str, Any]:
    """What a Python process sees of the module in `folder`."""
    folder_of_cuda = folder / "libraries"
    folder_of_cuda.mkdir(exist_ok=True)
    # Alone, without the other libraries of the CUDA build: they would take the place of those of this environment.
    for library in (torch / "lib" / "libc10_cuda.so", torch.parent / "nvidia" / "cu13" / "lib" / "libcudart.so.13"):
        (folder_of_cuda / library.name).unlink(missing_ok=True)
        (folder_of_cuda / library.name).symlink_to(library)
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(folder_of_cuda)}
    command = [sys.executable, "-c", IMPORT, str(folder), str(REPORT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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


def test_the_module_needs_only_what_torch_brings(module: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", dynamic))
    system = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
    assert needed - system == {f"lib{name}.so" for name in LINKED} | {"libcudart.so.13"}
    assert "[$ORIGIN/torch/lib:$ORIGIN/nvidia/cu13/lib]" in dynamic


def test_the_module_carries_no_path_of_this_machine(module: Path) -> None:
    text = module.read_bytes()
    assert str(ROOT).encode() not in text
    assert b"/tmp/" not in text


def test_the_module_imports_and_reports_as_preflight_asks(built: Path, cuda_torch: Path) -> None:
    seen = imported(built, cuda_torch)
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


def test_the_wheel_installs_and_imports(wheel: Path, cuda_torch: Path, tmp_path: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name == f"glm53_exl3_exllamav3_ext-{NEIGHBOUR}-{tag}-{tag}-linux_x86_64.whl"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path, wheel], check=True, env={**os.environ, "PIP_FIND_LINKS": ""})
    assert imported(tmp_path, cuda_torch)["fact"]["file"].startswith(str(tmp_path))


def test_a_symbol_that_no_library_has_stops_the_link(built: Path, cuda_torch: Path, tmp_path: Path) -> None:
    arguments = (built / "objects", "exl3_devctx.o", cuda_torch, tmp_path / "module.so")
    command = [sys.executable, "-c", LINK_WITHOUT, *map(str, arguments)]
    done = subprocess.run(command, cwd=TOOL, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "link-undefined: " in done.stderr
    assert "symbols of module.so are in no library, first DevCtx::" in done.stderr


def test_units_compile_to_the_same_bytes_in_another_output_folder(
    built: Path, toolkit: Path, kernels: Path, cuda_torch: Path, tmp_path: Path
) -> None:
    # The second has anonymous namespaces, which nvcc names by a hash of its options.
    units = ("exl3_moe_inst_k7_cb1", "exl3_devctx")
    done = build(
        *("--source", kernels, "--revision", NEIGHBOUR, "--output", tmp_path, "--objects-only", "--units", *units),
        *("--cuda-home", toolkit, "--torch", cuda_torch),
    )
    assert done.returncode == 0, done.stderr
    for unit in units:
        stripped = []
        for folder in (built, tmp_path):
            stripped.append(tmp_path / f"{unit}-{len(stripped)}.o")
            # nvcc leaves the random name of a temporary file in the local symbols, which the module does not keep.
            command = ["strip", "--strip-unneeded", "-o", stripped[-1], folder / "objects" / f"{unit}.o"]
            subprocess.run(command, check=True)
        assert stripped[0].read_bytes() == stripped[1].read_bytes(), unit
