"""Codebooks of EXL3 and the marker tensors that name them.

A linear stores at most one marker, a 32-bit integer tensor next to its trellis; no marker means `3inst`.
The kernels never read the marker's value, only its presence, so a loader that loses the tensor decodes
with the wrong codebook and gives fluent nonsense (turboderp-org/exllamav3 1.4.5, `modules/quant/exl3.py`).
"""

from __future__ import annotations

from typing import Final, Literal, TypeGuard, get_args

from glm53_exl3.errors import FormatError

Codebook = Literal["3inst", "mcg", "mul1"]

CODEBOOKS: Final[tuple[Codebook, ...]] = get_args(Codebook)

#: Multipliers of the two marked codebooks as the signed int32 stored in a pack.
MARKER_VALUES: Final[dict[str, int]] = {"mcg": -877912083, "mul1": -2082680531}


def is_codebook(name: object) -> TypeGuard[Codebook]:
    """Whether `name` is one of the three codebooks."""
    return name in CODEBOOKS


def require_codebook(name: object) -> Codebook:
    """`name` itself when it is a codebook.

    Raises:
        FormatError: `codebook-unknown`.
    """
    if is_codebook(name):
        return name
    raise FormatError(
        "codebook-unknown",
        f"codebook {name!r} is not known",
        expected="one of " + ", ".join(CODEBOOKS),
        hint="name the codebook the pack was quantized with",
    )
