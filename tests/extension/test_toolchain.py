"""Compilers, torch and Python that are missing or wrong, with stand-ins for nvcc and torch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from extension.building import STUB, TOOL, build

NVCC = """#!/bin/sh
case "$1" in
  --version) echo 'Cuda compilation tools, release {release}, V{release}.88' ;;
  --list-gpu-arch) printf 'compute_75\\ncompute_90\\ncompute_100\\ncompute_120\\ncompute_121\\n' ;;
  *) while [ $# -gt 1 ]; do [ "$1" = -o ] && object=$2; last=$1; shift; done
     {compile} ;;
esac
"""
#: What ptxas -v says of one kernel, in a build that compiles nothing.
SAYS = (
    "echo \"ptxas info    : Compiling entry function '_Z15exl3_moe_kernelILi2ELi128ELi1EEv' for 'sm_121a'\" >&2;"
    ' echo "    40 bytes stack frame, 32 bytes spill stores, 36 bytes spill loads" >&2;'
    ' echo "ptxas info    : Used 127 registers, used 1 barriers" >&2; : > "$object"'
)


def toolkit(folder: Path, release: str = "13.0", compile: str = SAYS) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include" / "cuda_runtime.h").touch()
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(release=release, compile=compile))
    nvcc.chmod(0o755)
    return folder


def torch_folder(folder: Path, version: str = "2.13.0+cu130") -> Path:
    torch = folder / "torch"
    for name in ("include/torch/csrc/utils/pybind.h", "include/c10/cuda/impl/cuda_cmake_macros.h"):
        (torch / name).parent.mkdir(parents=True, exist_ok=True)
        (torch / name).touch()
    (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    return torch


class Build:
    """A build with stand-ins for everything, each of which a test can replace."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        self.options = {
            "--source": STUB,
            "--output": self.output,
            "--torch": torch_folder(folder),
            "--cuda-home": toolkit(folder / "cuda"),
            "--units": "exl3_moe_inst_k2_cb1",
        }

    def run(self, *flags: str, **changes: Path | str | None) -> tuple[int, str, str]:
        options = {**self.options, **{f"--{key.replace('_', '-')}": value for key, value in changes.items()}}
        arguments = [part for key, value in options.items() if value is not None for part in (key, value)]
        done = build("exllamav3", "--objects-only", *arguments, *flags)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def attempt(tmp_path: Path) -> Build:
    return Build(tmp_path)


def test_stand_ins_build_and_the_record_holds_registers_and_spills(attempt: Build) -> None:
    code, out, err = attempt.run()
    assert code == 0, err
    assert "nvcc 13.0.88" in out
    assert "s  quant/comp_units/exl3_moe_inst_k2_cb1.cu\n" in out
    record = json.loads((attempt.output / "build.json").read_text())
    assert record["arch_list"] == "12.1a"
    (unit,) = record["units"]
    (kernel,) = unit["kernels"]
    assert (kernel["arch"], kernel["registers"], kernel["stack"]) == ("sm_121a", 127, 40)
    assert (kernel["spill_stores"], kernel["spill_loads"]) == (32, 36)
    assert "| 2 | mcg | 128 | sm_121a | 127 | 40 | 32 | 36 |" in (attempt.output / "resources.md").read_text()


def test_without_nvcc_anywhere(attempt: Build) -> None:
    code, _, err = attempt.run(cuda_home=None)
    assert code == 1
    assert err.startswith("error: nvcc-missing: no nvcc on PATH, and CUDA_HOME is not set\n  expected: CUDA 13.0\n")


def test_a_cuda_home_without_nvcc(attempt: Build, tmp_path: Path) -> None:
    code, _, err = attempt.run(cuda_home=tmp_path)
    assert code == 1
    assert err.startswith(f"error: nvcc-missing: no CUDA compiler at {tmp_path}/bin/nvcc\n")


def test_nvcc_of_cuda_12(attempt: Build, tmp_path: Path) -> None:
    code, _, err = attempt.run(cuda_home=toolkit(tmp_path / "old", release="12.9"))
    assert code == 1
    assert err.startswith("error: nvcc-release: ")
    assert "\n  expected: 13.0\n  found: 12.9\n" in err


def test_nvcc_by_its_path_brings_its_headers(attempt: Build, tmp_path: Path) -> None:
    home = toolkit(tmp_path / "other")
    assert attempt.run(cuda_home=None, nvcc=home / "bin" / "nvcc")[0] == 0
    (home / "include" / "cuda_runtime.h").unlink()
    code, _, err = attempt.run(cuda_home=None, nvcc=home / "bin" / "nvcc")
    assert code == 1
    assert err.startswith("error: cuda-headers: ")


@pytest.mark.parametrize("arch", ["12.2a", "8.9", "sm_121a", "12.1a 1.0", " ", "12.1b"])
def test_a_capability_that_the_compiler_does_not_know(attempt: Build, arch: str) -> None:
    code, _, err = attempt.run(arch=arch)
    assert code == 1
    assert err.startswith("error: arch-unknown: nvcc 13.0.88 cannot compile for ")
    assert "9.0, 10.0, 12.0, 12.1" in err


def test_a_capability_that_the_kernels_are_too_new_for(attempt: Build) -> None:
    code, _, err = attempt.run(arch="7.5 12.1a")
    assert code == 1
    assert err.startswith("error: arch-too-old: the kernels need more than a GPU of compute capability 7.5 has\n")
    assert "\n  expected: 8.0 or newer\n" in err


def test_several_capabilities_are_taken(attempt: Build) -> None:
    code, out, err = attempt.run(arch="9.0a 12.1a")
    assert code == 0, err
    assert "for 9.0a 12.1a" in out


def test_torch_without_cuda(attempt: Build) -> None:
    import torch

    code, _, err = attempt.run(torch=Path(torch.__file__).parent)
    assert code == 1
    assert err.startswith("error: torch-headers: ")
    assert "cuda_cmake_macros.h; it is a build without CUDA" in err


def test_another_torch_is_refused_unless_allowed(attempt: Build, tmp_path: Path) -> None:
    other = torch_folder(tmp_path / "other", version="2.11.0+cu130")
    code, _, err = attempt.run(torch=other)
    assert code == 1
    assert err.startswith("error: torch-version: ")
    assert "\n  expected: 2.13.0\n  found: 2.11.0\n" in err
    assert attempt.run("--allow-other-torch", torch=other)[0] == 0


def test_python_without_headers(attempt: Build, tmp_path: Path) -> None:
    code, _, err = attempt.run(python_include=tmp_path)
    assert code == 1
    assert err.startswith(f"error: python-headers: {tmp_path} has no Python.h\n")


def test_a_host_compiler_that_is_not_there(attempt: Build) -> None:
    code, _, err = attempt.run(host_compiler="no-such-g++")
    assert code == 1
    assert err.startswith("error: compiler-missing: cannot run the host compiler no-such-g++")


def test_a_unit_that_does_not_compile_is_named_with_its_message_and_command(attempt: Build, tmp_path: Path) -> None:
    broken = toolkit(tmp_path / "broken", compile="echo \"$last: expected a ';'\" >&2; exit 2")
    code, _, err = attempt.run(cuda_home=broken)
    assert code == 1
    assert err.startswith("error: compile-failed: quant/comp_units/exl3_moe_inst_k2_cb1.cu does not compile:\n")
    assert "expected a ';'" in err
    assert f"hint: cd {STUB}/exllamav3/exllamav3_ext && {broken}/bin/nvcc -ccbin g++" in err


def test_libraries_are_asked_for_before_anything_is_compiled(attempt: Build) -> None:
    options = [part for key, value in attempt.options.items() if key != "--units" for part in (key, value)]
    done = build("exllamav3", *options)
    assert done.returncode == 1
    assert done.stderr.startswith("error: torch-headers: ")
    assert "has no lib/libc10_cuda.so; it is a build without CUDA" in done.stderr
    libraries = Path(attempt.options["--torch"]) / "lib"
    libraries.mkdir()
    for name in ("libc10_cuda.so", "libtorch_python.so"):
        (libraries / name).touch()
    done = build("exllamav3", *options)
    assert done.stderr.startswith("error: cudart-missing: no libcudart.so.13 in ")
    assert not attempt.output.exists()


@pytest.mark.parametrize(
    "flags", [("--units", "binding"), ("--wheel", "--objects-only"), ("--jobs", "0"), ("--jobs", "many")]
)
def test_options_that_contradict_are_wrong_usage(flags: tuple[str, ...]) -> None:
    assert build("exllamav3", "--source", STUB, "--output", "out", *flags).returncode == 2


def test_a_unit_that_does_not_exist(attempt: Build) -> None:
    code, _, err = attempt.run(units="exl3_gemm")
    assert code == 1
    assert err.startswith("error: unit-unknown: no unit is called exl3_gemm\n")


def test_our_own_kernels_are_compiled_without_fast_arithmetic_and_know_what_they_are(tmp_path: Path) -> None:
    options = [*Build(tmp_path).options.items()]
    arguments = [part for key, value in options if key not in ("--source", "--units") for part in (key, value)]
    broken = toolkit(tmp_path / "broken", compile="exit 2")
    done = build("native", "--objects-only", *arguments, "--cuda-home", broken, "--units", "variant_k2_mcg")
    assert done.returncode == 1
    assert re.match(r"kernels of glm53-exl3 \d\S+: \d+ units\n", done.stdout)
    (command,) = [line for line in done.stderr.splitlines() if line.startswith("hint: ")]
    assert "-std=c++20 -O3 --expt-relaxed-constexpr -gencode=arch=compute_121a,code=sm_121a" in command
    assert "fast_math" not in command
    assert "exllamav3" not in command


def test_a_table_of_our_own_kernels_names_their_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL))
    import resources
    import tables

    space = "_ZN10glm53_exl36native"
    names = [
        f"{space}7gate_upILi2ELNS0_8CodebookE0ELi16ELi4ELi1EEEvNS0_10DecodeCallE",
        f"{space}8down_allILi0ELNS0_8CodebookE2ELi56ELi1EEEvNS0_11PrefillCallE",
        *[f"{space}4sortENS0_11PrefillCallE"] * 2,
        "_Z15exl3_moe_kernelILi2ELi128ELi1EEEv",
    ]
    kernels = [resources.KernelResources(name, "sm_121a", 113, 8, 4, 12, 4160) for name in names]
    assert tables.native_table(kernels).splitlines()[2:] == [
        "| down_all | at run time | 3inst | up to 56 rows | sm_121a | 113 | 8 | 4 | 12 | 4160 |",
        "| gate_up | 2 | mcg | 16 warps, 4 stages | sm_121a | 113 | 8 | 4 | 12 | 4160 |",
        "| sort |  |  |  | sm_121a | 113 | 8 | 4 | 12 | 4160 |",
    ]


def test_spills_of_called_functions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL))
    import resources

    frames = ("0 bytes stack frame, 0 bytes spill stores, 0", "16 bytes stack frame, 12 bytes spill stores, 20")
    text = "ptxas info    : Compiling entry function 'kernel' for 'sm_121a'\n" + "".join(
        f"ptxas info    : Function properties for {name}\n    {frame} bytes spill loads\n"
        for name, frame in zip(("kernel", "called"), frames, strict=True)
    )
    text += "ptxas info    : Used 128 registers, used 1 barriers, 16 bytes smem\n"
    assert resources.read_ptxas(text) == [resources.KernelResources("kernel", "sm_121a", 128, 16, 12, 20, 16)]
