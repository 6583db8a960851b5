"""Wheel file names, tags and hashes, and the machines that a lock is made for."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags, parse_tag
from packaging.utils import canonicalize_name

#: Newest glibc a wheel may ask for: that of Ubuntu 24.04, on which DGX OS is built.
GLIBC = (2, 39)
PYTHON = (3, 12)
#: The `wheels` of pins.json: name, version, system or `any`, parts of the file name.
Pinned = Mapping[str, Mapping[str, Mapping[str, Mapping[str, str]]]]
#: Names that older manylinux tags have beside `manylinux_2_N`.
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
#: First glibc 2.N that manylinux knows for a machine.
OLDEST = {"aarch64": 17, "x86_64": 5}


@dataclass(frozen=True)
class Target:
    """CPython 3.12 on Linux with glibc 2.39.

    Attributes:
        system: as Nix writes it, `aarch64-linux`.
    """

    system: str

    @property
    def machine(self) -> str:
        """What `platform.machine()` says there."""
        return self.system.removesuffix("-linux")

    @property
    def uv_platform(self) -> str:
        """What uv calls this target."""
        return f"{self.machine}-manylinux_{GLIBC[0]}_{GLIBC[1]}"

    @cached_property
    def tags(self) -> list[Tag]:
        """Every tag that can be installed, best first."""
        platforms = []
        for minor in range(GLIBC[1], OLDEST[self.machine] - 1, -1):
            platforms.append(f"manylinux_{GLIBC[0]}_{minor}_{self.machine}")
            if minor in LEGACY:
                platforms.append(f"{LEGACY[minor]}_{self.machine}")
        platforms.append(f"linux_{self.machine}")
        interpreter = f"cp{PYTHON[0]}{PYTHON[1]}"
        return [
            *cpython_tags(PYTHON, platforms=platforms),
            *compatible_tags(PYTHON, interpreter, platforms),
        ]

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables of PEP 508 markers there."""
        version = f"{PYTHON[0]}.{PYTHON[1]}"
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{version}.0",
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{version}.0",
            "python_version": version,
            "sys_platform": "linux",
        }


TARGETS = {system: Target(system) for system in ("aarch64-linux", "x86_64-linux")}


@dataclass(frozen=True)
class Wheel:
    """One wheel file: the parts of its name, and its hash.

    Attributes:
        distribution, version, python, abi, platform: as they stand in the file's name.
        hash: SRI, `sha256-` and base64.
    """

    distribution: str
    version: str
    python: str
    abi: str
    platform: str
    hash: str

    @classmethod
    def from_filename(cls, filename: str, digest: str) -> Wheel:
        """Take a file name apart.

        Args:
            digest: SHA-256 in hexadecimal.

        Raises:
            ValueError: the name is not one of a wheel, or has a build number, which neither the
                locks nor nixpkgs' fetchPypi can say.
        """
        parts = filename.removesuffix(".whl").split("-")
        if not filename.endswith(".whl") or len(parts) != 5:
            raise ValueError(f"{filename}: not NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
        return cls(*parts, sri(digest))

    @classmethod
    def from_entry(cls, version: str, entry: Mapping[str, str]) -> Wheel:
        """The wheel of an entry of pins.json or of a lock."""
        return cls(
            entry["distribution"],
            version,
            entry["python"],
            entry["abi"],
            entry["platform"],
            entry["hash"],
        )

    @property
    def name(self) -> str:
        """Normalised name of the distribution."""
        return str(canonicalize_name(self.distribution))

    @property
    def filename(self) -> str:
        """Name of the file."""
        return f"{self.distribution}-{self.version}-{self.python}-{self.abi}-{self.platform}.whl"

    def entry(self) -> dict[str, str]:
        """What pins.json and the locks write of it, without the version."""
        return {
            "distribution": self.distribution,
            "python": self.python,
            "abi": self.abi,
            "platform": self.platform,
            "hash": self.hash,
        }

    def rank(self, target: Target) -> int | None:
        """Place of its best tag in the target's list, 0 the best; None if it cannot be installed."""
        own = parse_tag(f"{self.python}-{self.abi}-{self.platform}")
        return next((place for place, tag in enumerate(target.tags) if tag in own), None)


def pinned_wheels(pins: Mapping[str, Any]) -> dict[tuple[str, str, str], Wheel]:
    """The wheels of pins.json by (system, normalised name, version); `any` counts for every system."""
    found = {}
    wheels: Pinned = pins["wheels"]
    for name, versions in wheels.items():
        for version, systems in versions.items():
            for system, entry in systems.items():
                for target in TARGETS if system == "any" else (system,):
                    found[target, name, version] = Wheel.from_entry(version, entry)
    return found


def sri(digest: str) -> str:
    """SRI of a SHA-256 written in hexadecimal."""
    return "sha256-" + base64.b64encode(bytes.fromhex(digest)).decode("ascii")


def is_sri(text: str) -> bool:
    """Whether the text is the SRI of a SHA-256."""
    kind, _, encoded = text.partition("-")
    try:
        return kind == "sha256" and len(base64.b64decode(encoded, validate=True)) == 32
    except binascii.Error:
        return False
