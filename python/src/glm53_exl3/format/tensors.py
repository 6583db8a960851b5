"""Shapes and dtypes of the tensors of one EXL3 linear.

A weight is `[in_features, out_features]`, the transpose of `torch.nn.Linear.weight`. It is cut into tiles of
16 x 16; a tile is 256 symbols of `bits` bits, stored as `16 * bits` int16 words.

| name | dtype | shape |
| --- | --- | --- |
| `<module>.trellis` | int16 | `[in/16, out/16, 16*bits]` |
| `<module>.suh` | fp16 | `[in]` input signs times input scales |
| `<module>.svh` | fp16 | `[out]` output signs times output scales |
| `<module>.mcg` / `<module>.mul1` | int32 | scalar or `[1]`, codebook marker |
| `<module>.bias` | fp16 | `[out]`, optional |

Source: turboderp-org/exllamav3 1.4.5, `modules/quant/exl3.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glm53_exl3.errors import FormatError

TRELLIS: Final = "trellis"
SUH: Final = "suh"
SVH: Final = "svh"
BIAS: Final = "bias"

#: Rows and columns of one tile, and so the granularity of the packed tensor.
TILE: Final = 16
#: Symbols in one tile.
TILE_SYMBOLS: Final = TILE * TILE
#: Size of one Hadamard block: both dimensions are rotated in blocks of this size.
HADAMARD: Final = 128
MIN_BITS: Final = 1
MAX_BITS: Final = 8


def require_bits(bits: object, where: str) -> int:
    """`bits` when it is an integer from 1 to 8.

    Raises:
        FormatError: `bits-range`, naming `where`.
    """
    if isinstance(bits, int) and not isinstance(bits, bool) and MIN_BITS <= bits <= MAX_BITS:
        return bits
    raise FormatError(
        "bits-range",
        f"{where}: {bits!r} bits a weight cannot be read",
        expected=f"an integer from {MIN_BITS} to {MAX_BITS}",
        hint="use a pack quantized at a whole number of bits a layer",
    )


def require_rotatable(in_features: int, out_features: int, where: str) -> None:
    """Check that both dimensions hold whole Hadamard blocks.

    Raises:
        FormatError: `shape-hadamard`, naming `where`.
    """
    if in_features > 0 and out_features > 0 and in_features % HADAMARD == 0 and out_features % HADAMARD == 0:
        return
    raise FormatError(
        "shape-hadamard",
        f"{where}: a weight of {in_features} x {out_features} cannot be rotated",
        expected=f"both dimensions multiples of {HADAMARD}",
        hint="pad the weight before quantizing, or cut tensor-parallel shards at multiples of 128",
    )


def trellis_shape(in_features: int, out_features: int, bits: int) -> tuple[int, int, int]:
    """Shape of the packed trellis of a weight `[in_features, out_features]`."""
    return in_features // TILE, out_features // TILE, TILE * bits


def bits_of_words(words: int, where: str) -> int:
    """Bits a weight of a trellis whose last dimension is `words`.

    Raises:
        FormatError: `trellis-half-rate` for the 1.5, 2.5 and 3.5 bit trellises of exllamav3 1.5 and newer, whose
            last dimension is an odd multiple of 8; `bits-range` otherwise.
    """
    if words > 0 and words % TILE == TILE // 2:
        raise FormatError(
            "trellis-half-rate",
            f"{where}: half-rate trellis of {words / TILE:g} bits a weight",
            expected=f"a last dimension that is a multiple of {TILE}",
            found=f"last dimension {words}",
            hint="half rates need the kernels of exllamav3 1.5 or newer; use a pack of whole bits a layer",
        )
    if words % TILE:
        raise FormatError(
            "bits-range",
            f"{where}: a trellis with a last dimension of {words} is not EXL3",
            expected=f"a multiple of {TILE} from {TILE} to {TILE * MAX_BITS}",
            hint="fetch the pack again; its header is not that of an EXL3 linear",
        )
    return require_bits(words // TILE, where)


def features_of_trellis(shape: Sequence[int], where: str) -> tuple[int, int, int]:
    """`(in_features, out_features, bits)` of a trellis shape.

    Raises:
        FormatError: the shape is not that of a trellis, or its dimensions cannot be rotated.
    """
    if len(shape) != 3:
        raise FormatError(
            "trellis-shape",
            f"{where}: a trellis has three dimensions",
            expected="[in/16, out/16, 16*bits]",
            found=str(list(shape)),
            hint="fetch the pack again; its header is not that of an EXL3 linear",
        )
    bits = bits_of_words(shape[2], where)
    in_features, out_features = shape[0] * TILE, shape[1] * TILE
    require_rotatable(in_features, out_features, where)
    return in_features, out_features, bits
