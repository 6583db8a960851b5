"""The native backend around its extension: what it passes, what it refuses, and what it does when a call fails."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glm53_exl3 import __version__
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import FixedWeights, PackedExperts, PackedLayer
from glm53_exl3.kernels.native import extension as native_extension
from glm53_exl3.kernels.native import kernel as native
from glm53_exl3.kernels.native.kernel import NativeKernel
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.streams import Turns
from kernels.test_reference import layer

SOURCES = Path(__file__).parents[2] / "python" / "csrc" / "native"


#: Of `run_layer`, in the order of layer.h.
ARGUMENTS = (
    *("x", "expert", "weight", "output", "scratch", "tokens"),
    *("tables", "bits", "rate", "codebook", "intermediate", "limit"),
)


def test_arguments_are_those_of_the_extension() -> None:
    text = (SOURCES / "binding.cpp").read_text(encoding="utf-8").split('"run_layer"', 1)[1].split("module.def", 1)[0]
    assert tuple(re.findall(r'py::arg\("(\w+)"\)', text)) == ARGUMENTS


class StandIn:
    """`run_layer` as layer.h declares it, by the reference; it leaves its counters dirty while it runs."""

    def __init__(self, packed: PackedLayer) -> None:
        self.packed = packed
        self.reference = ReferenceKernel(packed, torch.float32, "load")
        self.calls: list[dict[str, Any]] = []
        self.failing = False

    def __call__(self, *given: Any) -> None:
        call = dict(zip(ARGUMENTS, given, strict=True))
        self.calls.append(call)
        parts = (self.packed.gate, self.packed.up, self.packed.down)
        tensors = [tensor for one in parts for tensor in (one.trellis, one.suh, one.svh)]
        assert [table.tolist() for table in call["tables"]] == [[e.data_ptr() for e in tensor] for tensor in tensors]
        assert [rates.tolist() for rates in call["bits"]] == [list(one.rates) for one in parts]
        assert (call["scratch"].dtype, call["weight"].dtype) == (torch.uint8, torch.float32)
        assert all(call[name].is_contiguous() for name in ("x", "expert", "weight", "output"))
        assert not call["scratch"].any()
        call["scratch"][:16] = 1
        if self.failing:
            raise RuntimeError("CUDA error: an illegal instruction was encountered")
        call["output"].copy_(self.reference(call["x"], call["expert"], call["weight"]))
        call["scratch"].zero_()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A CPU stands for a GPU with streams."""
    return installed(monkeypatch, layer(limit=0.5)[0])


def installed(monkeypatch: pytest.MonkeyPatch, packed: PackedLayer) -> StandIn:
    found = StandIn(packed)
    module = SimpleNamespace(
        __name__="stand_in", run_layer=found, scratch_bytes=None, version=__version__, arch_list="12.1a"
    )
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(Turns, "enter", lambda turns, device: None)
    return found


def built(stand_in: StandIn, max_tokens: int = 8, top_k: int = 3) -> NativeKernel:
    kernel = NativeKernel(FixedWeights(stand_in.packed), max_tokens, top_k)
    stand_in.calls.clear()
    return kernel


def batch(tokens: int, top_k: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 256, generator=generator)
    ids = torch.randint(-1, 6, (tokens, top_k), generator=generator, dtype=torch.int32)
    return x, ids, torch.rand(tokens, top_k, generator=generator)


def test_a_call_passes_the_layer_and_gives_its_output(stand_in: StandIn) -> None:
    kernel = built(stand_in)
    x, ids, weights = batch(5)
    output = kernel(x, ids, weights)
    assert torch.equal(output, stand_in.reference(x, ids, weights))
    (call,) = stand_in.calls
    # Bits are 2, 3 and 4, so that no one rate holds; mcg is 0 in trellis.cuh.
    assert (call["rate"], call["codebook"], call["limit"]) == (0, 0, 0.5)
    assert call["intermediate"] == stand_in.packed.gate.svh.shape[1]
    assert (call["tokens"], kernel.rows) == (8, 8)
    assert len(call["scratch"]) == kernel._memory.scratch.num_bytes


def test_strided_and_bf16_arguments_are_made_what_the_kernels_read(stand_in: StandIn) -> None:
    kernel = built(stand_in)
    x, ids, weights = batch(4)
    output = kernel(x.t().contiguous().t(), ids.t().contiguous().t(), weights.bfloat16())
    assert output.is_contiguous()
    assert torch.equal(output, stand_in.reference(x, ids, weights.bfloat16().float()))


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(("codebook", "number"), [("mcg", 0), ("mul1", 1), ("3inst", 2)])
def test_one_rate_and_each_codebook_reach_the_kernels(
    monkeypatch: pytest.MonkeyPatch, codebook: Any, number: int, bits: int
) -> None:
    def experts(rows: int, columns: int) -> PackedExperts:
        trellis = torch.randint(-(2**15), 2**15, (3, rows // 16, columns // 16, 16 * bits), dtype=torch.int16)
        return PackedExperts(trellis, torch.ones(3, rows).half(), torch.ones(3, columns).half(), codebook)

    packed = PackedLayer("test", experts(256, 128), experts(256, 128), experts(128, 256))
    stand_in = installed(monkeypatch, packed)
    built(stand_in)(*batch(1))
    assert (stand_in.calls[0]["rate"], stand_in.calls[0]["codebook"]) == (bits, number)


def test_both_ways_to_run_a_batch_are_loaded_before_any_capture(stand_in: StandIn) -> None:
    NativeKernel(FixedWeights(stand_in.packed), 8, 3)
    # Four experts with 8 rows on average are the most of a decode step; one token more is sorted.
    assert [len(call["x"]) for call in stand_in.calls] == [1, 4 * 8 // 3, 4 * 8 // 3 + 1]
    assert all((call["expert"] == -1).all() for call in stand_in.calls)


def test_a_call_that_fails_leaves_no_counters_behind(stand_in: StandIn) -> None:
    kernel = built(stand_in)
    stand_in.failing = True
    with pytest.raises(RuntimeError, match="illegal instruction"):
        kernel(*batch(2))
    stand_in.failing = False
    x, ids, weights = batch(3)
    # The stand-in refuses a scratch that is not zero.
    assert torch.equal(kernel(x, ids, weights), stand_in.reference(x, ids, weights))


def test_more_experts_a_token_are_fewer_tokens_of_a_piece(stand_in: StandIn) -> None:
    kernel = built(stand_in, max_tokens=9, top_k=2)
    for top_k, tokens in ((1, 9), (2, 9), (3, 6), (16, 1), (32, 1)):
        kernel(*batch(2, top_k))
        assert stand_in.calls[-1]["tokens"] == tokens


def test_layers_of_one_shape_share_their_scratch_as_long_as_one_lives(stand_in: StandIn) -> None:
    first, second, other = built(stand_in), built(stand_in), built(stand_in, max_tokens=9)
    assert first._memory is second._memory
    assert first._memory is not other._memory
    kept = len(native._memories)
    del first, second
    assert len(native._memories) == kept - 1


def test_two_codebooks_are_refused_by_name(stand_in: StandIn) -> None:
    packed = stand_in.packed
    up = PackedExperts(packed.up.trellis, packed.up.suh, packed.up.svh, "3inst")
    with pytest.raises(KernelError, match="test has the codebooks 3inst and mcg") as caught:
        NativeKernel(FixedWeights(PackedLayer("test", packed.gate, up, packed.down)), 8, 2)
    assert caught.value.id == "native-codebook"
    assert "GLM53_EXL3_KERNEL=reference" in caught.value.hint


@pytest.mark.parametrize(
    ("attributes", "what", "found"),
    [
        ({"version": "0.0.1"}, "was built for another version", "0.0.1, ext.so"),
        ({"version": None}, "was built for another version", "unknown, ext.so"),
        ({"run_layer": None}, "it lacks run_layer", f"{__version__}, ext.so"),
    ],
)
def test_an_extension_of_another_version_is_refused(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], what: str, found: str
) -> None:
    whole: dict[str, object] = {"run_layer": 1, "scratch_bytes": 1, "version": __version__}
    kept = {name: value for name, value in (whole | attributes).items() if value is not None}
    module = SimpleNamespace(**kept, __file__="ext.so")
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    with pytest.raises(KernelError, match=what) as caught:
        native_extension.load_extension()
    assert (caught.value.id, caught.value.expected, caught.value.found) == ("extension-other", __version__, found)
    assert "tools/extension/build.py native" in caught.value.hint


def test_the_extension_of_this_version_is_taken(stand_in: StandIn) -> None:
    assert native_extension.load_extension().run_layer is stand_in


def test_an_extension_without_code_for_the_gpu_is_refused(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(KernelError, match="no code for this GPU") as caught:
        NativeKernel(FixedWeights(stand_in.packed), 8, 2)
    assert caught.value.id == "extension-other"
