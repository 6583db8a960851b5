"""One EXL3 linear: its tensors, its dense weight and its product, all in fp32.

The weight is W = diag(suh) H W^ H diag(svh), where W^ is the decoded trellis, H the blockwise Hadamard 128 rotation,
suh the input signs times the input scales and svh the same of the output. The rounding of intermediates differs between
the kernels of exllamav3, so W is defined up to tolerance; only W^ is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm53_exl3.decode.hadamard import hadamard_128
from glm53_exl3.decode.packing import require_words
from glm53_exl3.decode.trellis import chunk_weights, decode_trellis
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import Codebook, require_codebook
from glm53_exl3.format.tensors import HADAMARD, SUH, SVH, TILE, TRELLIS, features_of_trellis


@dataclass(frozen=True, eq=False)
class Exl3Tensor:
    """The tensors of one EXL3 linear, checked against each other.

    Attributes:
        trellis: int16 `[in/16, out/16, 16*bits]`.
        suh: fp16 `[in]`.
        svh: fp16 `[out]`.
        codebook: `3inst`, `mcg` or `mul1`.

    Raises:
        FormatError: a dtype or a shape is wrong, or the codebook is not known.
    """

    trellis: Tensor
    suh: Tensor
    svh: Tensor
    codebook: Codebook

    def __post_init__(self) -> None:
        """Check dtypes and shapes."""
        require_codebook(self.codebook)
        _check_tensors(self.trellis, self.suh, self.svh)

    @property
    def bits(self) -> int:
        """Bits a weight, 1 to 8."""
        return self.trellis.shape[-1] // TILE

    @property
    def in_features(self) -> int:
        """Size of the input."""
        return self.trellis.shape[0] * TILE

    @property
    def out_features(self) -> int:
        """Size of the output."""
        return self.trellis.shape[1] * TILE

    @property
    def shape(self) -> tuple[int, int]:
        """`(in_features, out_features)`, the transpose of the shape of `torch.nn.Linear.weight`."""
        return self.in_features, self.out_features

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Dense weight `[in, out]`, computed in fp32 and rounded to `dtype` at the end."""
        return dequantize(self.trellis, self.suh, self.svh, self.codebook, dtype)

    def linear(self, x: Tensor) -> Tensor:
        """`x` `[..., in]` times the weight: fp32 `[..., out]`. See :func:`linear_reference`."""
        return linear_reference(x, self)


def _check_tensors(trellis: Tensor, suh: Tensor, svh: Tensor) -> tuple[int, int]:
    require_words(trellis, TRELLIS)
    in_features, out_features, _ = features_of_trellis(trellis.shape, TRELLIS)
    for name, scale, size in ((SUH, suh, in_features), (SVH, svh, out_features)):
        if scale.dtype != torch.float16:
            raise FormatError(
                "scale-dtype",
                f"{name}: scales of dtype {scale.dtype}",
                expected="torch.float16",
                found=str(scale.dtype),
                hint="load the scales as stored; packed signs (`su`, `sv`) of older packs must be converted",
            )
        if scale.shape != (size,):
            raise FormatError(
                "scale-shape",
                f"{name}: scales do not fit the trellis",
                expected=str([size]),
                found=str(list(scale.shape)),
                hint="take trellis, suh and svh of the same linear, and cut all three at the same channels",
            )
    return in_features, out_features


def dequantize(trellis: Tensor, suh: Tensor, svh: Tensor, codebook: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dense weight W = diag(suh) H W^ H diag(svh), computed in fp32.

    Args:
        trellis: int16 `[in/16, out/16, 16*bits]`.
        suh: fp16 `[in]`.
        svh: fp16 `[out]`.
        codebook: `3inst`, `mcg` or `mul1`.
        dtype: dtype of the result.

    Returns:
        Tensor `[in, out]` of `dtype`, the transpose of `torch.nn.Linear.weight`.

    Raises:
        FormatError: a dtype or a shape is wrong, or the codebook is not known.
    """
    require_codebook(codebook)
    in_features, out_features = _check_tensors(trellis, suh, svh)
    result = torch.empty(in_features, out_features, dtype=dtype, device=trellis.device)
    # Rows are rotated in blocks, so blocks of rows are independent and bound the fp32 temporaries.
    blocks = max(1, chunk_weights(trellis.device) // (HADAMARD * out_features))
    step = blocks * HADAMARD
    for begin in range(0, in_features, step):
        inner = decode_trellis(trellis[begin // TILE : (begin + step) // TILE], codebook).float()
        weight = hadamard_128(hadamard_128(inner), 0)
        weight *= svh.float()
        weight *= suh[begin : begin + step].float().unsqueeze(1)
        result[begin : begin + step] = weight
    return result


def linear_reference(x: Tensor, tensor: Exl3Tensor) -> Tensor:
    """Product through the rotations: x * suh, H, times W^, H, * svh, all in fp32.

    Args:
        x: floating point `[..., in]`.
        tensor: the linear.

    Returns:
        fp32 `[..., out]`.

    Raises:
        FormatError: `input-shape` when the last dimension of `x` is not `in`.
    """
    if x.dim() == 0 or x.shape[-1] != tensor.in_features:
        raise FormatError(
            "input-shape",
            "the input does not fit the weight",
            expected=f"[..., {tensor.in_features}]",
            found=str(list(x.shape)),
            hint="pass activations whose last dimension is the input of the linear",
        )
    rotated = hadamard_128(x.float() * tensor.suh.float())
    inner = rotated @ decode_trellis(tensor.trellis, tensor.codebook).float()
    return hadamard_128(inner) * tensor.svh.float()
