"""What is wrong with the wheels of pins.json in themselves, and which of them nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lock_faults import Fault
from packaging.utils import canonicalize_name
from wheel_files import TARGETS, is_sri, pinned_wheels

#: Pinned for something else than a runtime, and for what.
BESIDE = {
    "nvidia-cuda-nvcc": "build of the extension without Nix",
    "nvidia-cuda-crt": "build of the extension without Nix",
    "nvidia-nvvm": "build of the extension without Nix",
    "nvidia-cuda-cccl": "build of the extension without Nix",
    "nvidia-cuda-runtime": "build of the extension without Nix",
    "nvidia-cuda-cuobjdump": "reads what that build made",
    "exllamav3": "released neighbour of the pinned revision; the checks read its kernels",
    "installer": "nix/packages/environment.nix unpacks the wheels with it",
    "poetry-core": "nix/packages/plugin.nix builds the plugin with it",
}


def shape_faults(pins: Mapping[str, Any]) -> Iterator[Fault]:
    """Wheels whose name, hash or tags cannot be right, and versions that are stated without a wheel."""
    for (system, name, version), wheel in pinned_wheels(pins).items():
        at = f"pins.json: {name} {version} for {system}"
        if wheel.name != name or canonicalize_name(name) != name:
            yield Fault("form", f"{at}: the file is {wheel.filename}")
        if not is_sri(wheel.hash):
            yield Fault("form", f"{at}: {wheel.hash!r} is no SHA-256 in SRI form")
        if wheel.rank(TARGETS[system]) is None:
            yield Fault("tags", f"{at}: {wheel.filename} cannot be installed there")
    stated = {(name, pins[name]) for name in ("torch", "torchvision", "triton")}
    for runtime in pins["runtimes"].values():
        stated.add(("flashinfer-python", runtime["flashinfer_python"]))
        if runtime["vllm"]["version"]:
            stated.add(("vllm", runtime["vllm"]["version"]))
    for name, version in sorted(stated):
        if version not in pins["wheels"].get(name, {}):
            yield Fault("bytes", f"pins.json: {name} {version} is stated, but no wheel of it is pinned")


def unused_faults(pins: Mapping[str, Any], locks: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
    """Pinned wheels that neither a lock nor anything named in `BESIDE` uses."""
    used = {
        (name, entry["version"])
        for lock in locks
        for locked in lock["systems"].values()
        for name, entry in locked.items()
    }
    for name, versions in pins["wheels"].items():
        for version in versions:
            if (name, version) not in used and name not in BESIDE:
                yield Fault("stale", f"pins.json: {name} {version} is pinned, but no lock uses it")
