"""The pins: versions, revisions and packs that a release of this project is made of.

`pins.json` beside this file is the only place where they stand; Nix reads the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

RuntimeName = Literal["fork", "upstream"]


@dataclass(frozen=True)
class RuntimePin:
    """One of the two runtimes.

    Attributes:
        name: `fork` or `upstream`.
        vllm_version: version of the vLLM distribution; None where only a revision is pinned.
        vllm_repository: GitHub repository as owner/name.
        vllm_revision: git revision.
        flashinfer_python: version of the flashinfer-python distribution.
    """

    name: RuntimeName
    vllm_version: str | None
    vllm_repository: str
    vllm_revision: str
    flashinfer_python: str


@dataclass(frozen=True)
class PackPin:
    """A pack or draft that can be asked for by name.

    Attributes:
        name: what users type; matched without regard to case.
        repository: Hugging Face repository as owner/name.
        commit: pinned commit, None while none is known to be right.
        kind: `pack` for a target model, `draft` for a speculative one.
        licence: SPDX-like id in lower case, as the Hub writes it.
        shards: number of safetensors files.
        weight_bytes: size of the safetensors files together.
    """

    name: str
    repository: str
    commit: str | None
    kind: Literal["pack", "draft"]
    licence: str
    shards: int
    weight_bytes: int


@dataclass(frozen=True)
class SourcePin:
    """A source tree on GitHub at one revision.

    Attributes:
        name: `nixpkgs`, or what the flake calls the input.
        repository: as owner/name.
        revision: git revision.
        hash: SRI of the unpacked tree as Nix counts it; None where it is not known.
    """

    name: str
    repository: str
    revision: str
    hash: str | None


@dataclass(frozen=True)
class WheelPin:
    """One wheel file.

    Attributes:
        distribution, version, python, abi, platform: the parts of its name, as they stand there.
        hash: SRI, `sha256-` and base64.
    """

    distribution: str
    version: str
    python: str
    abi: str
    platform: str
    hash: str

    @property
    def filename(self) -> str:
        """Name of the file."""
        return f"{self.distribution}-{self.version}-{self.python}-{self.abi}-{self.platform}.whl"


@dataclass(frozen=True)
class Pins:
    """All of `pins.json`.

    Attributes:
        python: minor version of the shipped interpreter.
        cuda: version of the CUDA toolkit.
        cuda_release: its release, as `13.0.3`.
        torch, torchvision, triton: versions without local part.
        gpu_capability: compute capability of the GPU the product is for, as `12.1`.
        moe_arity: positional arguments of the extension's `exl3_moe`.
        exllamav3_version: release that the pinned revision of exllamav3 calls itself.
        exllamav3_revision: git revision of exllamav3.
        runtimes: by name.
        packs: by name, in the order of the file.
        nixpkgs: the revision of nixpkgs that the flake is written for.
        sources: what the build of vLLM fetches, by the name of the flake's input.
        wheels: by normalised name of the distribution, version, and system or `any`.
    """

    python: str
    cuda: str
    cuda_release: str
    torch: str
    torchvision: str
    triton: str
    gpu_capability: str
    moe_arity: int
    exllamav3_version: str
    exllamav3_revision: str
    runtimes: Mapping[str, RuntimePin]
    packs: Mapping[str, PackPin]
    nixpkgs: SourcePin
    sources: Mapping[str, SourcePin]
    wheels: Mapping[str, Mapping[str, Mapping[str, WheelPin]]]

    def wheel(self, name: str, version: str, system: str) -> WheelPin:
        """The pinned wheel of a distribution.

        Args:
            name: normalised.
            system: as Nix writes it, `aarch64-linux` or `x86_64-linux`.

        Raises:
            LookupError: none is pinned; the message says what is.
        """
        versions = self.wheels.get(name, {})
        systems = versions.get(version, {})
        found = systems.get(system) or systems.get("any")
        if found is None:
            pinned = [f"{v} for {s}" for v, by_system in versions.items() for s in by_system]
            raise LookupError(f"no wheel of {name} {version} for {system} is pinned, only: {', '.join(pinned) or '-'}")
        return found


def capabilities(arch_list: str) -> set[str]:
    """Compute capabilities, as `12.1`, that an arch list such as `9.0a 12.1a` has code for."""
    return {arch.rstrip("af") for arch in arch_list.replace(";", " ").split()}


def _wheels(raw: Mapping[str, Any]) -> dict[str, dict[str, dict[str, WheelPin]]]:
    return {
        name: {
            version: {system: WheelPin(version=version, **entry) for system, entry in systems.items()}
            for version, systems in versions.items()
        }
        for name, versions in raw.items()
    }


def _source(name: str, entry: Mapping[str, Any]) -> SourcePin:
    return SourcePin(name, entry["repository"], entry["revision"], entry.get("hash"))


@cache
def load_pins() -> Pins:
    """The pins of this release."""
    raw = json.loads((Path(__file__).parent / "pins.json").read_text(encoding="utf-8"))
    return Pins(
        python=raw["python"],
        cuda=raw["cuda"],
        cuda_release=raw["cuda_release"],
        torch=raw["torch"],
        torchvision=raw["torchvision"],
        triton=raw["triton"],
        gpu_capability=raw["gpu"]["capability"],
        moe_arity=raw["exllamav3"]["moe_arity"],
        exllamav3_version=raw["exllamav3"]["version"],
        exllamav3_revision=raw["exllamav3"]["revision"],
        runtimes={
            name: RuntimePin(
                name,
                entry["vllm"]["version"],
                entry["vllm"]["repository"],
                entry["vllm"]["revision"],
                entry["flashinfer_python"],
            )
            for name, entry in raw["runtimes"].items()
        },
        packs={name: PackPin(name, **entry) for name, entry in raw["packs"].items()},
        nixpkgs=_source("nixpkgs", raw["nixpkgs"]),
        sources={name: _source(name, entry) for name, entry in raw["sources"].items()},
        wheels=_wheels(raw["wheels"]),
    )
