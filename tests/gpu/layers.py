"""Layers of random EXL3 experts on a GPU, and their dense reference."""

from __future__ import annotations

import torch

from glm53_exl3.bench_kernels.layers import Batch, random_experts
from glm53_exl3.decode import dequantize
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.kernels.interface import PackedLayer

#: GLM-5.3-Flash.
GLM = (4096, 2048, 288, 8)


def random_layer(
    hidden: int,
    intermediate: int,
    experts: int,
    bits: tuple[int, int, int],
    codebook: Codebook = "mcg",
    limit: float = 10.0,
) -> PackedLayer:
    generator = torch.Generator("cuda").manual_seed(hidden + experts + sum(bits))
    gate = random_experts(experts, hidden, intermediate, bits[0], codebook, generator)
    up = random_experts(experts, hidden, intermediate, bits[1], codebook, generator)
    down = random_experts(experts, intermediate, hidden, bits[2], codebook, generator)
    return PackedLayer("test", gate, up, down, limit)


def random_batch(tokens: int, hidden: int, experts: int, top_k: int, seed: int = 0) -> Batch:
    generator = torch.Generator("cuda").manual_seed(seed * 7919 + tokens)
    x = torch.randn(tokens, hidden, device="cuda", generator=generator).bfloat16()
    scores = torch.rand(tokens, experts, device="cuda", generator=generator)
    weights, ids = scores.topk(top_k)
    return Batch(x, ids.int(), weights / weights.sum(-1, keepdim=True))


class DenseReference:
    """fp32 products over dequantized experts, decoded when first needed; shares no kernel with the backend."""

    def __init__(self, layer: PackedLayer) -> None:
        self.layer = layer
        self._dense: dict[int, list[torch.Tensor]] = {}

    def dense(self, expert: int) -> list[torch.Tensor]:
        if expert not in self._dense:
            self._dense[expert] = [
                dequantize(one.trellis[expert], one.suh[expert], one.svh[expert], one.codebook, dtype=torch.float32)
                for one in (self.layer.gate, self.layer.up, self.layer.down)
            ]
        return self._dense[expert]

    def __call__(self, batch: Batch) -> torch.Tensor:
        layer, output = self.layer, torch.zeros(batch.x.shape, device="cuda")
        for expert in batch.ids.unique().tolist():
            if not 0 <= expert < layer.gate.num_experts:
                continue
            token, choice = (batch.ids == expert).nonzero(as_tuple=True)
            gate, up, down = self.dense(expert)
            x = batch.x[token].float()
            gated, upped = torch.nn.functional.silu(x @ gate), x @ up
            if layer.limit:
                gated, upped = gated.clamp(max=layer.limit), upped.clamp(-layer.limit, layer.limit)
            share = batch.weights[token, choice].unsqueeze(1)
            output.index_add_(0, token, (gated * upped) @ down * share)
        return output
