"""The pins that the extensions depend on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PINS_FILE: Final = REPOSITORY / "python" / "src" / "glm53_exl3" / "pins.json"


@dataclass(frozen=True)
class Pinned:
    """What pins.json says about every extension.

    Attributes:
        cuda: release of the CUDA toolkit, as `13.0`.
        torch: version without local part.
        arch_list: compute capabilities to compile for, as `12.1a`.
    """

    cuda: str
    torch: str
    arch_list: str


@dataclass(frozen=True)
class KernelSource:
    """What pins.json says about exllamav3.

    Attributes:
        repository: as owner/name.
        revision: git revision of it.
        version: what that revision calls itself.
        moe_arity: positional arguments of exl3_moe.
    """

    repository: str
    revision: str
    version: str
    moe_arity: int


def read_pins(path: Path) -> Pinned:
    """Read pins.json, or the part of it that Nix passes on."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Pinned(cuda=raw["cuda"], torch=raw["torch"], arch_list=raw["gpu"]["arch_list"])


def read_kernel_source(path: Path) -> KernelSource:
    """Read the part about exllamav3, which its own extension alone needs."""
    kernels = json.loads(path.read_text(encoding="utf-8"))["exllamav3"]
    return KernelSource(
        repository=kernels["repository"],
        revision=kernels["revision"],
        version=kernels["version"],
        moe_arity=kernels["moe_arity"],
    )
