"""The pins: versions, revisions and packs that a release of this project is made of.

`pins.json` beside this file is the only place where they stand; Nix reads the same file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

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
class Pins:
    """All of `pins.json`.

    Attributes:
        python: minor version of the shipped interpreter.
        cuda: version of the CUDA toolkit.
        torch, torchvision: versions without local part.
        gpu_capability: compute capability of the GPU the product is for, as `12.1`.
        moe_arity: positional arguments of the extension's `exl3_moe`.
        exllamav3_version: release that the pinned revision of exllamav3 calls itself.
        exllamav3_revision: git revision of exllamav3.
        runtimes: by name.
        packs: by name, in the order of the file.
    """

    python: str
    cuda: str
    torch: str
    torchvision: str
    gpu_capability: str
    moe_arity: int
    exllamav3_version: str
    exllamav3_revision: str
    runtimes: Mapping[str, RuntimePin]
    packs: Mapping[str, PackPin]


@cache
def load_pins() -> Pins:
    """The pins of this release."""
    raw = json.loads((Path(__file__).parent / "pins.json").read_text(encoding="utf-8"))
    return Pins(
        python=raw["python"],
        cuda=raw["cuda"],
        torch=raw["torch"],
        torchvision=raw["torchvision"],
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
    )
