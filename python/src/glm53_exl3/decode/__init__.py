"""Layer 2: EXL3 in torch, on any device: decoding, references of linear and mixture of experts, and the encoder.

Decoding is exact; the references are slow, plain and fp32, to judge kernels by. The encoder runs on a CPU and needs
numba, which is imported on first use.
"""

from __future__ import annotations

from glm53_exl3.decode.codebooks import codebook_table
from glm53_exl3.decode.encoder import encode_tiles
from glm53_exl3.decode.hadamard import hadamard_128
from glm53_exl3.decode.linear import Exl3Tensor, dequantize, linear_reference
from glm53_exl3.decode.moe import gated_silu, moe_dense_reference, moe_reference
from glm53_exl3.decode.packing import pack_symbols, unpack_states, unpack_symbols
from glm53_exl3.decode.quantize import quantize
from glm53_exl3.decode.tiles import TilePermutation, matrix_to_tiles, tile_permutation, tiles_to_matrix
from glm53_exl3.decode.trellis import decode_tiles, decode_trellis

__all__ = [
    "Exl3Tensor",
    "TilePermutation",
    "codebook_table",
    "decode_tiles",
    "decode_trellis",
    "dequantize",
    "encode_tiles",
    "gated_silu",
    "hadamard_128",
    "linear_reference",
    "matrix_to_tiles",
    "moe_dense_reference",
    "moe_reference",
    "pack_symbols",
    "quantize",
    "tile_permutation",
    "tiles_to_matrix",
    "unpack_states",
    "unpack_symbols",
]
