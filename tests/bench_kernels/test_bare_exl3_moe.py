"""How the kernel of exllamav3 is called alone: against a stand-in for the extension that reads the same arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench_kernels.test_measure import CPU, settings
from glm53_exl3.bench_kernels import bare_exl3_moe
from glm53_exl3.bench_kernels.bare_exl3_moe import BareExl3Moe
from glm53_exl3.bench_kernels.layers import random_batch, random_layer
from glm53_exl3.bench_kernels.oracle import expected_outputs
from glm53_exl3.decode import dequantize, gated_silu
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.accuracy import relative_error
from glm53_exl3.kernels.interface import PackedLayer
from glm53_exl3.pins import load_pins

CONCURRENCY = 3


class StandIn:
    """exl3_moe by its contract: rows sorted by expert, outputs added, an expert with too many rows skipped."""

    def __init__(self, layer: PackedLayer) -> None:
        self.layer = layer
        self.launches: list[int] = []

    def __call__(self, *given: Any) -> None:
        assert len(given) == load_pins().moe_arity
        states, sums, count, token, weight = given[:5]
        gate, up, inner_gate, inner_up = given[5:9]
        width = self.layer.gate.svh.shape[1]
        for one, size in ((gate, states.shape[1]), (up, states.shape[1]), (inner_gate, width), (inner_up, width)):
            assert (one.dtype, one.shape[0], one.shape[2]) == (torch.float16, CONCURRENCY, size)
        assert given[9] == 0
        assert list(given[10:13]) == [2, 3, 4]
        projections = (self.layer.gate, self.layer.up, self.layer.down)
        tensors = [tensor for one in projections for tensor in (one.trellis, one.suh, one.svh)]
        assert [int(table[0]) for table in given[13:22]] == [tensor.data_ptr() for tensor in tensors]
        assert given[22:28] == (True, False) * 3
        assert given[28:] == (self.layer.limit, -1)
        assert (states.dtype, sums.dtype, weight.dtype) == (torch.float16, torch.float32, torch.float16)
        assert (count.dtype, token.dtype) == (torch.int64, torch.int64)
        assert len(count) == self.layer.gate.num_experts + 1
        self.launches.append(len(states))
        self._add(states, sums, count, token, weight, gate.shape[1])

    def _add(
        self, states: torch.Tensor, sums: torch.Tensor, count: torch.Tensor, token: Any, weight: Any, rows: int
    ) -> None:
        begin = 0
        for expert, length in enumerate(count.tolist()[:-1]):
            mine = slice(begin, begin + length)
            begin += length
            if not 0 < length <= rows:
                continue
            gate, up, down = (
                dequantize(one.trellis[expert], one.suh[expert], one.svh[expert], one.codebook)
                for one in (self.layer.gate, self.layer.up, self.layer.down)
            )
            x = states[token[mine]].float()
            hidden = gated_silu(x @ gate, x @ up, self.layer.limit)
            sums.index_add_(0, token[mine], (hidden @ down) * weight[mine].float().unsqueeze(1))
        assert begin == len(token)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    kernel = StandIn(random_layer(settings(bits="2,3,4"), 0, CPU))
    module = SimpleNamespace(exl3_moe=kernel, exl3_moe_max_concurrency=lambda device: CONCURRENCY)
    monkeypatch.setattr(bare_exl3_moe, "load_extension", lambda: module)
    monkeypatch.setattr(bare_exl3_moe, "require_arch", lambda extension, capability: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    return kernel


@pytest.mark.parametrize(("tokens", "pieces"), [(1, [1]), (16, [16]), (40, [16, 16, 8])])
def test_every_row_reaches_its_expert(
    stand_in: StandIn, tokens: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bare_exl3_moe, "MAX_ROWS", 16)
    batch = random_batch(settings(), tokens, 0, CPU)
    call = BareExl3Moe(stand_in.layer, 40, []).prepare(batch)
    (expected,) = expected_outputs(stand_in.layer, [batch])
    for _ in range(2):
        call.reset()
        assert relative_error(call.run(), expected) < 2e-3
    assert stand_in.launches == pieces * 2
    # Without a reset outputs add up: the clock sees no zeroing.
    assert relative_error(call.run(), 2 * expected) < 2e-3


def test_layers_share_one_scratch(stand_in: StandIn) -> None:
    scratch: list[torch.Tensor] = []
    first = BareExl3Moe(stand_in.layer, 20, scratch)
    held = list(scratch)
    BareExl3Moe(stand_in.layer, 20, scratch)
    assert first.rows == 32
    assert [id(one) for one in scratch] == [id(one) for one in held]
    assert [tuple(one.shape) for one in scratch] == [(CONCURRENCY, 32, 256)] * 2 + [(CONCURRENCY, 32, 128)] * 2


def test_a_codebook_without_kernels_is_refused(stand_in: StandIn) -> None:
    with pytest.raises(KernelError, match="has the codebook 3inst"):
        BareExl3Moe(random_layer(settings(codebook="3inst"), 0, CPU), 8, [])
