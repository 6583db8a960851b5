"""The gain at which each codebook codes a Gaussian source best, and the error it then makes.

A larger gain makes the steps of a codebook finer in the units of the source and clips more of its tails.

How the tables were made: :func:`gaussian_error` over 16 tiles at gains 0.06 apart, then over 48 tiles (seed 1) at three
gains 0.03 apart around the best; the errors are those of the chosen gains over the same 48 tiles. Around the best gain
the error is flat: three hundredths change it by less than the spread between samples of that size, about two percent.
No coder of a Gaussian source gets below 4**-bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from glm53_exl3.decode.encoder import encode_tiles
from glm53_exl3.decode.trellis import decode_tiles
from glm53_exl3.format.codebooks import Codebook

#: Best gain for a source of unit variance, by codebook, for 1 to 8 bits.
GAUSSIAN_GAIN: Final[dict[Codebook, tuple[float, ...]]] = {
    "3inst": (1.42, 1.22, 1.17, 1.1, 1.05, 1.0, 0.96, 0.94),
    "mcg": (1.42, 1.22, 1.17, 1.1, 1.05, 1.0, 0.96, 0.94),
    "mul1": (1.09, 0.99, 0.93, 0.9, 0.87, 0.85, 0.82, 0.78),
}
#: Mean squared error at that gain relative to the power of the source, for 1 to 8 bits.
GAUSSIAN_ERROR: Final[dict[Codebook, tuple[float, ...]]] = {
    "3inst": (0.27, 0.0698, 0.0179, 0.00466, 0.00122, 0.000322, 8.55e-05, 2.22e-05),
    "mcg": (0.269, 0.0694, 0.0177, 0.00458, 0.0012, 0.00032, 8.38e-05, 2.25e-05),
    "mul1": (0.276, 0.0695, 0.0177, 0.00454, 0.00117, 0.000298, 8.01e-05, 2.1e-05),
}


def gaussian_error(codebook: str, bits: int, gain: float, tiles: int = 64, seed: int = 0) -> float:
    """Mean squared error of coding a unit Gaussian source at a gain, relative to its power."""
    source = torch.randn(tiles, 256, generator=torch.Generator().manual_seed(seed))
    decoded = decode_tiles(encode_tiles(source * gain, bits, codebook), codebook).float() / gain
    return float((decoded - source).square().mean())


def measure_gain(codebook: str, bits: int, gains: Sequence[float], tiles: int = 64) -> tuple[float, float]:
    """The best of some gains and its error."""
    errors = {gain: gaussian_error(codebook, bits, gain, tiles) for gain in gains}
    best = min(errors, key=errors.__getitem__)
    return best, errors[best]
