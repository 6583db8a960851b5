"""One CUDA_HOME of made-up wheels: layout, names for linkers, the driver's stub. Real ones are in tests/nix."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support.programs import require_program

TOOL = Path(__file__).parents[2] / "tools" / "environment" / "cuda_home.py"
FILES = (
    "bin/nvcc",
    "bin/crt/link.stub",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "include/crt/host_config.h",
    "include/crt/math_functions.h",
    "include/cuda_runtime.h",
    "include/cccl/cuda/std/type_traits",
    "include/cublas_v2.h",
    "include/cusparse.h",
    "include/cusolverDn.h",
    "include/curand_kernel.h",
    "include/nvrtc.h",
    "lib/libcudart.so.13",
    "lib/libcudart_static.a",
    "lib/libcusolverMg.so.12",
)
HEADER = """
#define cuMemAlloc cuMemAlloc_v2
#define cuStreamSynchronize __CUDA_API_PTSZ(cuStreamSynchronize)
#define CUDA_VERSION 13000
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
CUresult CUDAAPI cuStreamSynchronize(CUstream hStream);
"""


MATH = """
extern __device__ double                 rsqrt(double x);
extern __device__ float                  rsqrtf(float x);
__func__(double rsqrt(double a));
__func__(float rsqrtf(float a));
"""


def wheel(folder: Path, names: tuple[str, ...]) -> Path:
    path = folder / "nvidia_toolkit-13.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            entry = zipfile.ZipInfo(f"nvidia/cu13/{name}")
            entry.external_attr = (0o755 if name.startswith("bin/") else 0o644) << 16
            archive.writestr(entry, MATH if name.endswith("math_functions.h") else name)
        archive.writestr("nvidia/cu13/include/cuda.h", HEADER)
        archive.writestr("nvidia/cudnn/lib/libcudnn.so.9", "another folder")
    return path


def make(folder: Path, names: tuple[str, ...], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--output", str(folder / "cuda"), *options, str(wheel(folder, names))]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_layout_is_that_of_an_installed_toolkit(tmp_path: Path) -> None:
    done = make(tmp_path, FILES)
    assert done.returncode == 0, done.stderr
    home = tmp_path / "cuda"
    assert (home / "lib64" / "libcudart.so").resolve() == home / "lib" / "libcudart.so.13"
    assert (home / "lib" / "libcusolverMg.so").is_symlink()
    assert (home / "bin" / "nvcc").stat().st_mode & 0o111
    assert not (home / "include" / "nvrtc.h").stat().st_mode & 0o111
    assert not list(home.rglob("libcudnn*"))


@pytest.mark.parametrize(("without", "owner"), [("bin/nvcc", "nvidia-cuda-nvcc"), ("nvvm/bin/cicc", "nvidia-nvvm")])
def test_toolkit_without_a_part_names_the_wheel_that_has_it(tmp_path: Path, without: str, owner: str) -> None:
    done = make(tmp_path, tuple(name for name in FILES if name != without))
    assert done.returncode == 1
    assert done.stderr == f"error: cuda-home-incomplete: the wheels lack {without} (of {owner})\n"


def test_stub_has_the_drivers_name_and_every_function_that_its_header_leads_to(tmp_path: Path) -> None:
    require_program("cc")
    assert make(tmp_path, FILES, "--stub-compiler", "cc").returncode == 0
    stub = tmp_path / "cuda" / "lib" / "stubs" / "libcuda.so"
    symbols = subprocess.run(["nm", "-D", "--defined-only", stub], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in symbols.splitlines()}
    assert {"cuInit", "cuMemAlloc", "cuMemAlloc_v2", "cuStreamSynchronize", "cuStreamSynchronize_ptsz"} <= exported
    section = subprocess.run(["readelf", "-d", stub], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in section


def test_math_header_follows_the_c_library(tmp_path: Path) -> None:
    assert make(tmp_path, FILES).returncode == 0
    text = (tmp_path / "cuda" / "include" / "crt" / "math_functions.h").read_text(encoding="utf-8")
    assert text.index("#if __GLIBC_PREREQ(2, 42)") < text.index("rsqrt(double x) GLM53_EXL3_RSQRT_SPECIFIER;")
    assert text.count("GLM53_EXL3_RSQRT_SPECIFIER;") == 2
    assert text.count("GLM53_EXL3_RSQRT_SPECIFIER);") == 2


def test_math_header_of_another_release_is_not_mended_blindly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "MATH", MATH.replace("float                  rsqrtf", "float rsqrtf"))
    done = make(tmp_path, FILES)
    assert done.returncode == 1
    assert "error: cuda-header-changed: include/crt/math_functions.h has no line 'float " in done.stderr
