"""Make a CUDA_HOME of the NVIDIA wheels in an environment: python link_cuda.py ENVIRONMENT

The wheels of torch and of NVIDIA's compiler share one folder, which lacks only the names that linkers look for. They
are added as links, and ENVIRONMENT/cuda.sh sets what a server needs that compiles kernels while it starts.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from install_error import InstallError

#: Each stands for a wheel without which some compiler fails in the middle of its work.
_WANTED = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "include/cccl/cuda/std/type_traits": "nvidia-cuda-cccl",
    "include/cublas_v2.h": "nvidia-cublas",
    "include/nvrtc.h": "nvidia-cuda-nvrtc",
    "include/curand_kernel.h": "nvidia-curand",
    "lib/libcudart.so.13": "nvidia-cuda-runtime",
}
_VERSIONED = re.compile(r"(lib[^/]+\.so)\.\d[\d.]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path, metavar="ENVIRONMENT")
    parser.add_argument("--cuda", default="13.0", help="release that torch was built with (default: 13.0)")
    parser.add_argument("--arch", default="12.1a", help="what kernels are compiled for (default: 12.1a, a GB10)")
    options = parser.parse_args(arguments)
    try:
        script = link_cuda(options.environment.absolute(), options.cuda, options.arch)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"before a server is started: . {shlex.quote(str(script))}")
    return 0


def link_cuda(environment: Path, cuda: str, arch_list: str) -> Path:
    """Add the links and write cuda.sh, whose path is returned; doing it again changes nothing.

    Raises:
        InstallError: the wheels there are no toolkit, or one of another release.
    """
    home = next(environment.glob("lib/python*/site-packages/nvidia/cu13"), None)
    missing = sorted({wheel for name, wheel in _WANTED.items() if home is None or not (home / name).exists()})
    if home is None or missing:
        raise InstallError(
            "cuda-home-incomplete",
            f"the wheels in {environment} are no CUDA toolkit",
            found=f"nothing of {', '.join(missing)}",
            hint="install everything that requirements.txt names",
        )
    _check_nvcc(home / "bin" / "nvcc", cuda)
    for library in sorted((home / "lib").iterdir()):
        if match := _VERSIONED.fullmatch(library.name):
            _link(home / "lib" / match[1], library.name)
    _link(home / "lib64", "lib")
    script = environment / "cuda.sh"
    script.write_text(_script(environment, home, arch_list), encoding="utf-8")
    return script


def _link(link: Path, target: str) -> None:
    if not link.exists():
        link.symlink_to(target)


def _check_nvcc(nvcc: Path, cuda: str) -> None:
    try:
        text = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise InstallError("nvcc-broken", f"the CUDA compiler does not start: {error}") from error
    release = re.search(r"release (\d+\.\d+)", text)
    if release is None or release[1] != cuda:
        found = release[1] if release else text.strip() or "no answer"
        raise InstallError("nvcc-release", f"{nvcc} is of another release", expected=cuda, found=found)


def _script(environment: Path, home: Path, arch_list: str) -> str:
    """The same variables as the programs of the flake set (nix/packages/launcher.sh)."""
    place, cuda_home = shlex.quote(str(environment)), shlex.quote(str(home))
    return f"""\
# Read by a shell before a server of this environment is started: . cuda.sh
# Not what else is installed: another release of CUDA breaks what is compiled at run time.
export CUDA_HOME={cuda_home}
export CUDA_PATH="$CUDA_HOME"
# ninja is in the environment.
export PATH={place}/bin:"$CUDA_HOME/bin:$PATH"
# Triton's own assembler may be older than the GPU.
export TRITON_PTXAS_PATH="$CUDA_HOME/bin/ptxas" TRITON_PTXAS_BLACKWELL_PATH="$CUDA_HOME/bin/ptxas"
export TORCH_CUDA_ARCH_LIST={arch_list} FLASHINFER_CUDA_ARCH_LIST={arch_list}
"""


if __name__ == "__main__":
    sys.exit(main())
