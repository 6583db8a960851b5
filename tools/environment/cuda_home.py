"""Make one CUDA_HOME of NVIDIA's wheels, in the layout of an installed toolkit.

    cuda_home.py --output DIR [--loader LD.SO] [--stub-compiler CC] WHEEL...

Wheels hold the toolkit in parts, under `nvidia/cu13`, without the names that a linker looks for. What compiles kernels
wants `lib64`, `libcudart.so` beside `libcudart.so.13`, and the driver's library to link against, which no wheel has:
`--stub-compiler` makes one whose functions fail.

Exits with 1 and a sentence when the wheels do not make a toolkit.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import elf

_INSIDE = PurePosixPath("nvidia/cu13")
#: Each stands for a wheel without which some compiler fails in the middle of its work.
WANTED = (
    ("bin/nvcc", "nvidia-cuda-nvcc"),
    ("bin/crt/link.stub", "nvidia-cuda-nvcc"),
    ("nvvm/bin/cicc", "nvidia-nvvm"),
    ("nvvm/libdevice/libdevice.10.bc", "nvidia-nvvm"),
    ("include/crt/host_config.h", "nvidia-cuda-crt"),
    ("include/crt/math_functions.h", "nvidia-cuda-crt"),
    ("include/cuda_runtime.h", "nvidia-cuda-runtime"),
    ("include/cccl/cuda/std/type_traits", "nvidia-cuda-cccl"),
    ("include/cublas_v2.h", "nvidia-cublas"),
    ("include/cusparse.h", "nvidia-cusparse"),
    ("include/cusolverDn.h", "nvidia-cusolver"),
    ("include/curand_kernel.h", "nvidia-curand"),
    ("include/nvrtc.h", "nvidia-cuda-nvrtc"),
    ("lib/libcudart.so.13", "nvidia-cuda-runtime"),
    ("lib/libcudart_static.a", "nvidia-cuda-runtime"),
)
#: glibc 2.42 declares these two as never throwing. CUDA 13.0 does not, so no .cu would compile; 13.2 has such a macro.
_MATH_HEADER = "include/crt/math_functions.h"
_SPECIFIER = "GLM53_EXL3_RSQRT_SPECIFIER"
_SPECIFIER_DEFINITION = f"""\
#if !defined({_SPECIFIER})
#include <features.h>
#if defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 42)
#define {_SPECIFIER} noexcept(true)
#endif
#endif
#if !defined({_SPECIFIER})
#define {_SPECIFIER}
#endif
#endif
"""
_RSQRT = (
    ("double                 rsqrt(double x);", f"double                 rsqrt(double x) {_SPECIFIER};"),
    ("float                  rsqrtf(float x);", f"float                  rsqrtf(float x) {_SPECIFIER};"),
    ("__func__(double rsqrt(double a));", f"__func__(double rsqrt(double a) {_SPECIFIER});"),
    ("__func__(float rsqrtf(float a));", f"__func__(float rsqrtf(float a) {_SPECIFIER});"),
)
_VERSIONED = re.compile(r"(lib[^/]+\.so)\.\d[\d.]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--loader", default="", help="program interpreter for the programs; as they are without")
    parser.add_argument("--stub-compiler", default="", help="C compiler of the target, to make stubs/libcuda.so")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    extract(options.wheels, options.output)
    missing = [f"{name} (of {wheel})" for name, wheel in WANTED if not (options.output / name).exists()]
    if missing:
        print(f"error: cuda-home-incomplete: the wheels lack {', '.join(missing)}", file=sys.stderr)
        return 1
    unknown = mend_math_header(options.output / _MATH_HEADER)
    if unknown:
        print(
            f"error: cuda-header-changed: {_MATH_HEADER} has no line {unknown!r} to mend for glibc 2.42",
            file=sys.stderr,
        )
        return 1
    link_names(options.output)
    if options.stub_compiler:
        make_stub(options.output, options.stub_compiler)
    if options.loader:
        for file in elf.read(elf.elf_files(options.output)):
            if file.loader:
                elf.set_loader(file.path, options.loader)
    return 0


def extract(wheels: Sequence[Path], output: Path) -> None:
    """Put the toolkit's files where an installation has them."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = PurePosixPath(entry.filename)
                if entry.is_dir() or not path.is_relative_to(_INSIDE) or ".." in path.parts:
                    continue
                target = output / path.relative_to(_INSIDE)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(entry))
                # Wheels carry the mode in the upper half.
                target.chmod(0o755 if (entry.external_attr >> 16) & 0o111 or target.parent.name == "bin" else 0o644)


def mend_math_header(header: Path) -> str:
    """Let `rsqrt` and `rsqrtf` be declared as the C library declares them; a line that is not there is returned."""
    text = header.read_text(encoding="utf-8")
    for line, mended in _RSQRT:
        if text.count(line) != 1:
            return line
        text = text.replace(line, mended)
    # In front of all conditions: the second part of the header is read where the first is left out.
    header.write_text(_SPECIFIER_DEFINITION + text, encoding="utf-8")
    return ""


def link_names(output: Path) -> None:
    """The folder and the file names that linkers look for."""
    (output / "lib64").symlink_to("lib")
    for library in sorted((output / "lib").iterdir()):
        match = _VERSIONED.fullmatch(library.name)
        link = output / "lib" / match[1] if match else None
        if link is not None and not link.exists():
            link.symlink_to(library.name)


def driver_functions(header: str) -> list[str]:
    """Names that the driver's library exports by its header: those declared, and those that macros make of them."""
    declared = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", header))
    renamed = set(re.findall(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", header, re.MULTILINE))
    threads = re.findall(r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)", header)
    return sorted(declared | renamed | {f"{name}_{kind.lower()}" for kind, name in threads})


def make_stub(output: Path, compiler: str) -> None:
    """A library with the driver's name and functions: what is linked against it finds the driver's own at run time.

    Functions and not only the name, because linkers drop a library that resolves nothing.
    """
    header = (output / "include" / "cuda.h").read_text(encoding="utf-8")
    # 34 is CUDA_ERROR_STUB_LIBRARY.
    source = "".join(f"int {name}(void) {{ return 34; }}\n" for name in driver_functions(header))
    folder = output / "lib" / "stubs"
    folder.mkdir()
    command = [compiler, "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o"]
    subprocess.run([*command, str(folder / "libcuda.so")], input=source.encode(), check=True)


if __name__ == "__main__":
    sys.exit(main())
