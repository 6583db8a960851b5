"""A lock of five made-up distributions with its pins and requirements, right as it stands."""

from __future__ import annotations

import base64
import copy
import hashlib
from typing import Any

SYSTEM = "aarch64-linux"


def hash_of(filename: str) -> str:
    """An SRI that belongs to the name and to no real file."""
    return "sha256-" + base64.b64encode(hashlib.sha256(filename.encode()).digest()).decode()


def entry(name: str, version: str, requires: list[str], tags: str = "py3-none-any") -> dict[str, Any]:
    """An entry of a lock, with the version."""
    python, abi, platform = tags.split("-")
    distribution = name.replace("-", "_")
    return {
        "version": version,
        "distribution": distribution,
        "python": python,
        "abi": abi,
        "platform": platform,
        "hash": hash_of(f"{distribution}-{version}-{tags}.whl"),
        "size": 1000,
        "requires": requires,
    }


BINARY = "cp312-cp312-manylinux_2_28_aarch64"
LOCKED = {
    "engine": {**entry("engine", "1.0", ["torch==2.13.0", "paint[blue]>=2", "sound"])},
    "nvidia-cublas": entry("nvidia-cublas", "13.1", [], "py3-none-manylinux_2_27_aarch64"),
    "paint": {**entry("paint", "2.5", ["pigment<4"]), "extras": ["blue"]},
    "pigment": entry("pigment", "3.0rc1", []),
    "torch": entry("torch", "2.13.0", ["nvidia-cublas==13.1.*"], BINARY),
}
STATED = [{"requirement": "engine==1.0", "source": "hand"}]
EXCEPTIONS = [{"distribution": "engine", "requires": "sound", "reason": "it is silent"}]


def _pin(name: str) -> dict[str, Any]:
    locked = LOCKED[name]
    parts = {key: locked[key] for key in ("distribution", "python", "abi", "platform", "hash")}
    return {locked["version"]: {SYSTEM: parts}}


def tiny_pins() -> dict[str, Any]:
    """The pins: torch and what it needs of NVIDIA."""
    return {
        "torch": "2.13.0",
        "torchvision": "0.28.0",
        "triton": "3.7.1",
        "runtimes": {},
        "wheels": {name: _pin(name) for name in ("torch", "nvidia-cublas")},
    }


def tiny_lock() -> dict[str, Any]:
    """The lock, to be damaged at will."""
    return copy.deepcopy(
        {
            "runtime": "demo",
            "python": "cp312",
            "requirements": STATED,
            "exceptions": EXCEPTIONS,
            "systems": {SYSTEM: LOCKED},
        }
    )
