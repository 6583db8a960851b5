"""Quantization of a dense weight without calibration data.

The weight is divided by signs and scales of its output and input channels, rotated on both sides, which makes its
entries close to Gaussian, multiplied by the gain that suits the codebook, and encoded tile by tile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from glm53_exl3.decode.encoder import Progress, encode_tiles, require_finite
from glm53_exl3.decode.gains import GAUSSIAN_GAIN
from glm53_exl3.decode.hadamard import hadamard_128
from glm53_exl3.decode.linear import Exl3Tensor
from glm53_exl3.decode.tiles import matrix_to_tiles
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import require_codebook
from glm53_exl3.format.tensors import require_bits, require_rotatable, trellis_shape


def _root_mean_square(weight: Tensor, dim: int) -> Tensor:
    # In fp64: squares of small fp32 weights would vanish.
    return weight.double().square().mean(dim).sqrt()


def _signs(size: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (size,), generator=generator, dtype=torch.int64).double() * 2 - 1


def _stored_scale(scale: Tensor, name: str) -> Tensor:
    stored = scale.half()
    if not stored.isfinite().all():
        raise FormatError(
            "weight-range",
            f"{name}: the scale of a channel exceeds fp16",
            expected="scales up to 65504",
            found=f"{float(scale.abs().max()):g}",
            hint="scale the weight down and its input or output up",
        )
    return stored


def _divisor(stored: Tensor) -> Tensor:
    # A channel whose scale is stored as 0 decodes to 0 whatever its symbols are.
    divisor = stored.double()
    return torch.where(divisor == 0, torch.inf, divisor)


def _scales(weight: Tensor, gain: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    in_signs, out_signs = (_signs(size, generator) for size in weight.shape)
    out_rms = _root_mean_square(weight, 0)
    present = out_rms > 0
    level = float(out_rms[present].mean()) if present.any() else 1.0
    # The level is split evenly, which keeps both scales in the normal range of fp16 and the fp16 values between the two
    # rotations of a kernel away from its largest number.
    svh = _stored_scale(out_signs * out_rms / level**0.5, "svh")
    in_rms = _root_mean_square(weight.double() / _divisor(svh), 1)
    suh = _stored_scale(in_signs * in_rms / gain, "suh")
    return suh, svh


def _require_weight(weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.dtype.is_floating_point:
        raise FormatError(
            "weight-shape",
            "only a matrix of floating point can be quantized",
            expected="floating point [in, out]",
            found=f"{weight.dtype} {list(weight.shape)}",
            hint="pass the transpose of torch.nn.Linear.weight, one linear at a time",
        )
    in_features, out_features = weight.shape
    require_rotatable(in_features, out_features, "weight")
    require_finite(weight, "weight")


def quantize(
    weight: Tensor,
    bits: int,
    codebook: str = "mcg",
    seed: int = 0,
    progress: Progress | None = None,
) -> Exl3Tensor:
    """Quantize one weight, reproducibly: equal arguments give equal tensors whatever the number of threads.

    Channels that are all zero decode to exact zeros.

    Args:
        weight: floating point `[in, out]`, the transpose of `torch.nn.Linear.weight`, on any device; quantized as fp32.
            Both dimensions are multiples of 128.
        bits: bits a weight, 1 to 8.
        codebook: `3inst`, `mcg` or `mul1`; the default is one that every kernel has.
        seed: seed of the random signs.
        progress: called with the number of 16 x 16 tiles encoded so far, of in * out / 256.

    Returns:
        The tensors on the CPU.

    Raises:
        FormatError: `bits-range`, `codebook-unknown`, `weight-shape`, `shape-hadamard`, `weight-finite` or
            `weight-range`.
        Glm53Error: `numba-missing`.
    """
    require_bits(bits, "quantize")
    name = require_codebook(codebook)
    _require_weight(weight)
    dense = weight.detach().to("cpu", torch.float32)
    generator = torch.Generator().manual_seed(seed)
    suh, svh = _scales(dense, GAUSSIAN_GAIN[name][bits - 1], generator)
    # By the stored scales, so that their rounding costs nothing.
    inner = (dense.double() / _divisor(svh) / _divisor(suh).unsqueeze(1)).float()
    tiles = matrix_to_tiles(hadamard_128(hadamard_128(inner), 0))
    words = encode_tiles(tiles, bits, name, progress)
    in_features, out_features = dense.shape
    return Exl3Tensor(words.view(trellis_shape(in_features, out_features, bits)), suh, svh, name)
