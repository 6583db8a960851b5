"""What a layer has to give: products in fp32 over decoded weights, which share no kernel with a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from glm53_exl3.bench_kernels.layers import Batch, touched_experts
from glm53_exl3.decode import dequantize, gated_silu
from glm53_exl3.kernels.interface import PackedLayer


def expected_outputs(layer: PackedLayer, batches: Sequence[Batch]) -> list[torch.Tensor]:
    """Outputs fp32 `[T, hidden]` of each batch.

    One expert is decoded at a time, and only once for all batches, so that memory holds one dense expert beside the
    outputs.
    """
    outputs = [torch.zeros(batch.x.shape, dtype=torch.float32, device=batch.x.device) for batch in batches]
    touched = [set(touched_experts(batch)) for batch in batches]
    with _full_precision():
        for expert in sorted(set().union(*touched)):
            gate, up, down = _dense(layer, expert)
            for batch, output, members in zip(batches, outputs, touched, strict=True):
                if expert not in members:
                    continue
                token, choice = (batch.ids == expert).nonzero(as_tuple=True)
                x = batch.x[token].float()
                hidden = gated_silu(x @ gate, x @ up, layer.limit)
                output.index_add_(0, token, (hidden @ down) * batch.weights[token, choice].unsqueeze(1))
    return outputs


def _dense(layer: PackedLayer, expert: int) -> tuple[torch.Tensor, ...]:
    return tuple(
        dequantize(one.trellis[expert], one.suh[expert], one.svh[expert], one.codebook)
        for one in (layer.gate, layer.up, layer.down)
    )


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32, whatever the process chose: its ten bits would hide a wrong kernel."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
