"""One real compilation of each extension, shared by the tests that look at it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from extension.building import COMPILER_WHEELS, HERE, NATIVE_ARCH_LIST, NEIGHBOUR, TOOL, build, torch_of
from extension.pinned_wheels import CACHE, PINS, ROOT, fetch, pinned_file, unpack
from support.programs import lacking


@pytest.fixture(scope="session")
def toolkit() -> Path:
    """CUDA's compiler and its tools, from the pinned wheels."""
    if sysconfig.get_platform() != "linux-x86_64":
        lacking("the pinned CUDA compiler is fetched for x86_64 Linux only")
    wheels = [fetch(name, HERE) for name in (*COMPILER_WHEELS, "nvidia-cuda-cuobjdump")]
    return unpack("toolkit", [(wheel, ("nvidia/",)) for wheel in wheels]) / "nvidia" / "cu13"


@pytest.fixture(scope="session")
def kernels() -> Path:
    """The sources of the neighbour release."""
    return unpack("exllamav3", [(fetch("exllamav3", HERE), ("exllamav3/", "exllamav3-"))])


@pytest.fixture(scope="session")
def cuda_torch() -> Path:
    return torch_of(HERE)


@pytest.fixture(scope="session")
def built(toolkit: Path, kernels: Path, cuda_torch: Path) -> Path:
    """Output folder of a build of all that is taken of exllamav3, for the pinned GPU."""
    depends = {"kernels": pinned_file("exllamav3", HERE)[1]["hash"], "pins": PINS["exllamav3"], "gpu": PINS["gpu"]}
    arguments = ("--source", kernels, "--revision", NEIGHBOUR)
    return _output("exllamav3", arguments, depends, toolkit, cuda_torch)


@pytest.fixture(scope="session")
def native(toolkit: Path, cuda_torch: Path) -> Path:
    """Output folder of a build of our own kernels, for all GPUs that they are compiled for here."""
    return _output("native", ("--arch", NATIVE_ARCH_LIST), NATIVE_ARCH_LIST, toolkit, cuda_torch)


def _output(product: str, arguments: tuple[str | Path, ...], depends: object, toolkit: Path, torch: Path) -> Path:
    """Build with a wheel; what was built before is taken while nothing that goes into it changes."""
    output = CACHE / f"built-{product}-{_digest(product, depends)}"
    if not (output / "complete").is_file():
        shutil.rmtree(output, ignore_errors=True)
        done = build(
            *(product, *arguments, "--output", output, "--cuda-home", toolkit, "--torch", torch, "--wheel"),
            SOURCE_DATE_EPOCH="1700000000",
        )
        assert done.returncode == 0, done.stderr
        (output / "complete").write_text(done.stdout)
    return output


def _digest(product: str, depends: object) -> str:
    """Of everything that the result depends on."""
    digest = hashlib.sha256(sys.version.encode())
    digest.update(subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout)
    for folder in (TOOL, ROOT / "python" / "csrc" / product):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    digest.update((ROOT / "python" / "pyproject.toml").read_bytes())
    for name in (*COMPILER_WHEELS, "torch"):
        digest.update(pinned_file(name, HERE)[1]["hash"].encode())
    digest.update(json.dumps(depends).encode())
    return digest.hexdigest()[:12]
