"""Faults of a pack in groups, worst first."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.safetensors_header import StoredTensor


class Level(enum.IntEnum):
    """How bad a fault is: the smaller, the more it makes of the pack unusable, and the more others follow from it."""

    MISSING = 0
    LENGTH = 1
    CONTENT = 2
    HEADER = 3
    TENSOR = 4
    SHAPE = 5
    CONTRADICTION = 6
    UNCHECKED = 7
    WARNING = 8


#: Files at these levels are damaged whatever the repository has; at others they are suspect.
DAMAGED: Final = frozenset({Level.MISSING, Level.LENGTH, Level.CONTENT, Level.HEADER})

_LEVELS: Final[dict[str, Level]] = {
    **dict.fromkeys(("file-missing", "file-unreadable", "shard-missing", "pack-empty", "shard-pointer"), Level.MISSING),
    **dict.fromkeys(("shard-truncated", "shard-oversized", "file-size"), Level.LENGTH),
    "file-hash": Level.CONTENT,
    **dict.fromkeys(("shard-header", "file-json", "manifest-invalid"), Level.HEADER),
    **dict.fromkeys(
        ("tensor-missing", "tensor-doubled", "expert-missing", "expert-surplus", "layer-missing", "layer-ambiguous"),
        Level.TENSOR,
    ),
    **dict.fromkeys(
        (
            "tensor-shape",
            "trellis-shape",
            "trellis-half-rate",
            "bits-range",
            "shape-hadamard",
            "scales-legacy",
            "marker-value",
            "codebook-ambiguous",
            "bias-unsupported",
        ),
        Level.SHAPE,
    ),
    **dict.fromkeys(
        (
            "index-contradiction",
            "index-incomplete",
            "bits-by-expert",
            "bits-contradiction",
            "codebook-mixed",
            "codebook-contradiction",
            "codebook-unknown",
            "config-value",
            "layer-bits",
            "not-exl3",
            "quant-method",
            "pack-size",
        ),
        Level.CONTRADICTION,
    ),
    "manifest-missing": Level.UNCHECKED,
    **dict.fromkeys(
        ("shard-surplus", "index-total", "file-absent", "file-changed", "fetch-incomplete", "mtp-absent"), Level.WARNING
    ),
}


@dataclass(frozen=True)
class Finding:
    """Faults of one id.

    Attributes:
        level: how bad they are.
        faults: all of them, in the order in which they were found; at least one.
        files: files of the pack that are to blame, as far as that is known.
    """

    level: Level
    faults: tuple[Glm53Error, ...]
    files: tuple[str, ...]

    @property
    def id(self) -> str:
        """What the faults are called."""
        return self.faults[0].id


def level_of(fault: Glm53Error) -> Level:
    """The level of a fault by its id. An id that is not known is no warning."""
    return _LEVELS.get(fault.id, Level.CONTRADICTION)


def to_findings(faults: Iterable[Glm53Error], tensors: Mapping[str, StoredTensor]) -> tuple[Finding, ...]:
    """Faults by id, worst first and within a level in the order of their first."""
    by_id: dict[str, list[Glm53Error]] = {}
    for fault in faults:
        by_id.setdefault(fault.id, []).append(fault)
    findings = [
        Finding(level_of(group[0]), tuple(group), tuple(dict.fromkeys(_files(group, tensors))))
        for group in by_id.values()
    ]
    return tuple(sorted(findings, key=lambda finding: finding.level))


def _files(faults: Iterable[Glm53Error], tensors: Mapping[str, StoredTensor]) -> Iterable[str]:
    for fault in faults:
        if isinstance(fault, DamageError):
            yield from fault.files
            yield from (tensors[name].shard.name for name in fault.tensors if name in tensors)
