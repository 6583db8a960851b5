"""Ways to compute a pack wrongly, each of which the canary has to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from glm53_exl3.decode import decode_tiles, hadamard_128, pack_symbols, unpack_symbols
from glm53_exl3.format.tensors import TILE
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel

#: Makes a wrong kernel of layer number `index` (0 for the first layer of experts).
Damage = Callable[[int, PackedLayer], ReferenceKernel]


def kernel(layer: PackedLayer) -> ReferenceKernel:
    """The right kernel of a layer, as the plugin builds it on a CPU."""
    return ReferenceKernel(layer, torch.float32, "load")


def on_layer(change: Callable[[PackedLayer], PackedLayer], only: int | None = None) -> Damage:
    """Damage of the packed tensors, in every layer or in layer number `only`."""
    return lambda index, layer: kernel(change(layer) if only in (None, index) else layer)


def each(change: Callable[[PackedExperts], PackedExperts]) -> Callable[[PackedLayer], PackedLayer]:
    """The same change to gate, up and down."""
    return lambda layer: replace(layer, gate=change(layer.gate), up=change(layer.up), down=change(layer.down))


def silence(experts: PackedExperts, expert: int | None = None) -> PackedExperts:
    """All outputs zero, or those of one expert."""
    svh = experts.svh.clone()
    svh[slice(None) if expert is None else expert] = 0
    return replace(experts, svh=svh)


def flip_lowest_bits(experts: PackedExperts, expert: int) -> PackedExperts:
    """The lowest bit of every symbol of one expert inverted."""
    trellis = experts.trellis.clone()
    words = trellis[expert].flatten(0, 1)
    symbols = unpack_symbols(words) ^ 1
    trellis[expert] = pack_symbols(symbols, experts.bits).view(trellis[expert].shape)
    return replace(experts, trellis=trellis)


def without_permutation(index: int, layer: PackedLayer) -> ReferenceKernel:
    """Tiles filled row by row, as if the stream were not in tensor-core order."""
    result = kernel(layer)
    dense = tuple(_decode_row_major(experts) for experts in (layer.gate, layer.up, layer.down))
    result._dense = (dense[0], dense[1], dense[2])
    return result


def _decode_row_major(experts: PackedExperts) -> Tensor:
    count, rows, columns, _ = experts.trellis.shape
    tiles = decode_tiles(experts.trellis.flatten(0, 2), experts.codebook).float()
    matrix = tiles.view(count, rows, columns, TILE, TILE).transpose(2, 3).reshape(count, rows * TILE, columns * TILE)
    rotated = hadamard_128(hadamard_128(matrix, dim=1), dim=2)
    return experts.suh.float()[:, :, None] * rotated * experts.svh.float()[:, None, :]


def damages(num_layers: int, num_experts: int) -> Iterator[tuple[str, Damage]]:
    """Every damage with its name; silence for each expert of each layer."""
    yield "routed experts zeroed", on_layer(lambda layer: replace(layer, down=silence(layer.down)))
    yield "wrong codebook (mul1 for mcg)", on_layer(each(lambda experts: replace(experts, codebook="mul1")))
    yield "no tile permutation", without_permutation
    yield "suh left out", on_layer(each(lambda experts: replace(experts, suh=torch.ones_like(experts.suh))))
    yield "gate and up swapped", on_layer(lambda layer: replace(layer, gate=layer.up, up=layer.gate))
    for index in range(num_layers):
        for expert in range(num_experts):
            yield f"expert {expert} of MoE layer {index} zeroed", on_layer(_silence_one(expert), index)
        name = f"lowest bit plane of down flipped, one expert of MoE layer {index}"
        yield name, on_layer(_flip_one(num_experts // 2), index)


def _silence_one(expert: int) -> Callable[[PackedLayer], PackedLayer]:
    return lambda layer: replace(layer, down=silence(layer.down, expert))


def _flip_one(expert: int) -> Callable[[PackedLayer], PackedLayer]:
    return lambda layer: replace(layer, down=flip_lowest_bits(layer.down, expert))
