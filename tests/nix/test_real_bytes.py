"""Real bytes: what is pinned, fetched by Nix by its hash, says of itself what the pins say.

About 3 GB, in a store that keeps them. Nothing here runs code for a Spark; it reads what a Spark would load.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import elf
import pytest

from support.nix_flake import ROOT, run_nix

PINS = json.loads((ROOT / "nix" / "pins.json").read_text(encoding="utf-8"))
TOOLS = ROOT / "tools" / "environment"
#: Libraries of the C++ compiler and zlib, which every Linux has and no wheel brings.
SYSTEM_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1")


def own_name(path: Path) -> str:
    """File name of a wheel in the store, without the store's hash."""
    return path.name.partition("-")[2]


@pytest.fixture(scope="module")
def wheels(tree: Path) -> dict[str, Path]:
    """Every pinned wheel of a Spark by its file name."""
    arguments = ["--file", "tests/nix/pinned-wheels.nix", "--argstr", "system", "aarch64-linux"]
    done = run_nix(tree, "build", "--impure", "--no-link", "--json", "--max-jobs", "4", *arguments, timeout=1500)
    assert done.returncode == 0, done.stderr
    paths = [Path(each["outputs"]["out"]) for each in json.loads(done.stdout)]
    return {own_name(path): path for path in paths}


@pytest.mark.timeout(1800)
def test_every_pinned_wheel_is_there_by_its_hash(wheels: dict[str, Path]) -> None:
    pinned = {
        "-".join([file["distribution"], version, file["python"], file["abi"], file["platform"]]) + ".whl"
        for versions in PINS["wheels"].values()
        for version, files in versions.items()
        for system, file in files.items()
        if system in ("any", "aarch64-linux")
    }
    assert set(wheels) == pinned
    assert len(pinned) > 25


@pytest.mark.timeout(1200)
def test_torch_is_the_build_for_cuda_13_and_its_libraries_are_the_pinned_ones(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    """What torch and NVIDIA's libraries ask for is in the pinned wheels, in the driver, or in any Linux."""
    system = tmp_path / "system"
    system.mkdir()
    for name in SYSTEM_LIBRARIES:
        (system / name).touch()
    named = tmp_path / "wheels"
    named.mkdir()
    for name, path in wheels.items():
        if name.startswith(("torch-", "nvidia_")):
            (named / name).symlink_to(path)
    prefix = tmp_path / "environment"
    command = [sys.executable, str(TOOLS / "assemble.py"), "--prefix", str(prefix), "--python", sys.executable]
    command += [
        "--python-version",
        "3.12",
        "--no-compile",
        "--library-path",
        str(system),
        "--rules",
        f"{TOOLS}/rules.json",
    ]
    done = subprocess.run(
        [*command, "--wheels", *map(str, named.iterdir())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    site = prefix / "lib" / "python3.12" / "site-packages"
    command = [
        sys.executable,
        str(TOOLS / "check_torch.py"),
        str(site),
        "--torch",
        PINS["torch"],
        "--cuda",
        PINS["cuda"],
    ]
    subprocess.run(command, check=True)
    files = elf.read(elf.elf_files(site / "torch"))
    driven = [file for file in files if "libcuda.so.1" in file.needed]
    assert driven
    assert all("/run/opengl-driver/lib" in file.search for file in driven)
    assert any("libcudart.so.13" in file.needed for file in files)
    header = (site / "torch" / "lib" / "libtorch_cuda.so").open("rb").read(20)
    assert header[18:20] == b"\xb7\x00", "not for aarch64"


@pytest.mark.parametrize(
    ("name", "member", "text"),
    [
        ("vllm-0.32.0-", "vllm-0.32.0.dist-info/METADATA", "Requires-Dist: torch==2.13.0"),
        ("vllm-0.32.0-", "vllm-0.32.0.dist-info/METADATA", "Requires-Dist: flashinfer-python==0.7.0.post1"),
        ("flashinfer_python-0.6.18rc10-", "flashinfer/_build_meta.py", "0.6.18rc10"),
        ("exllamav3-1.4.5-", "exllamav3/version.py", "1.4.5"),
        ("nvidia_cuda_nvcc-13.0.88-", "nvidia/cu13/bin/nvcc.profile", "NVVMIR_LIBRARY_DIR"),
    ],
)
def test_wheel_says_what_it_is(wheels: dict[str, Path], name: str, member: str, text: str) -> None:
    path = next(path for file, path in wheels.items() if file.startswith(name))
    with zipfile.ZipFile(path) as archive:
        assert text in archive.read(member).decode("utf-8")


def test_exllamav3s_neighbour_has_the_moe_kernels(wheels: dict[str, Path]) -> None:
    path = next(path for file, path in wheels.items() if file.startswith("exllamav3-"))
    with zipfile.ZipFile(path) as archive:
        units = [name for name in archive.namelist() if "/comp_units/exl3_moe_inst_" in name]
    assert len(units) == 20


@pytest.fixture(scope="module")
def home(tree: Path) -> Path:
    """The flake's CUDA_HOME, built by its derivation for this machine."""
    expression = (
        '(import ./tests/nixpkgs-stub { system = "x86_64-linux"; '
        "overlays = [ (import ./nix/overlay.nix { inputs = { }; }) ]; }).glm53-exl3.cuda-home"
    )
    done = run_nix(tree, "build", "--impure", "--no-link", "--json", "--expr", expression, timeout=800)
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)[0]["outputs"]["out"])


@pytest.mark.timeout(900)
def test_cuda_home_compiles_and_links_for_the_gb10(home: Path, tmp_path: Path) -> None:
    """nvcc of the pinned wheels, sm_121a code, the driver's stub."""
    source = tmp_path / "kernel.cu"
    source.write_text(
        "#include <cuda.h>\n#include <cuda/std/cstdint>\n#include <cublas_v2.h>\n"
        "__global__ void add(float* x) { x[threadIdx.x] += 1.0f; }\n"
        'extern "C" int run(float* x) { add<<<1, 32>>>(x); return cuInit(0) + cublasCreate(nullptr); }\n',
        encoding="utf-8",
    )
    library = tmp_path / "kernel.so"
    flags = ["-shared", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_121a,code=sm_121a", "-lcuda", "-lcublas"]
    flags += ["-cudart", "shared"]
    compiled = subprocess.run(
        [home / "bin" / "nvcc", *flags, source, "-o", library], capture_output=True, text=True, check=False
    )
    assert compiled.returncode == 0, compiled.stderr
    code = subprocess.run(
        [home / "bin" / "cuobjdump", "--list-elf", library], capture_output=True, text=True, check=True
    )
    assert "sm_121a" in code.stdout
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert {"libcuda.so.1", "libcudart.so.13", "libcublas.so.13"} <= set(
        needed.replace("[", " ").replace("]", " ").split()
    )


@pytest.mark.timeout(900)
def test_cuda_home_compiles_with_the_c_library_of_nixpkgs(home: Path, tmp_path: Path) -> None:
    """glibc 2.42 declares these two as never throwing; here a header says that it were that release."""
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "features.h").write_text(
        "#include_next <features.h>\n#undef __GLIBC_PREREQ\n"
        "#define __GLIBC_PREREQ(major, minor) ((2 << 16) + 42 >= ((major) << 16) + (minor))\n",
        encoding="utf-8",
    )
    source = tmp_path / "kernel.cu"
    source.write_text(
        'extern "C" double rsqrt(double x) noexcept(true);\nextern "C" float rsqrtf(float x) noexcept(true);\n'
        "__global__ void root(double* x) { x[0] = rsqrt(x[0]) + rsqrtf(1.0f); }\n",
        encoding="utf-8",
    )
    command = [home / "bin" / "nvcc", "-gencode", "arch=compute_121a,code=sm_121a", "-c", source, "-o", tmp_path / "o"]
    environment = {**os.environ, "CPATH": str(newer)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # The same without the newer library shows that the declarations do collide.
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
