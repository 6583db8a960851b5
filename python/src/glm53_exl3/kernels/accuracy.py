"""When an output is right."""

from __future__ import annotations

import math
from typing import Final

import torch

#: Largest error of an output, relative to its largest value: bf16 alone is 2^-9, and intermediates are fp16.
TOLERANCE: Final = 5e-3


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference relative to the largest value; infinite when an output is not finite or of another shape."""
    if found.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    difference = (found.float() - expected).abs().max() / expected.abs().max().clamp(min=1e-12)
    error = float(difference)
    return error if math.isfinite(error) else math.inf
