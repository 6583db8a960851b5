"""`auto`: the backends are tried once for each kind of layer, and what is wrong is left out loudly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels import automatic, proof
from glm53_exl3.kernels.automatic import AutomaticKernel, Build, build_automatic
from glm53_exl3.kernels.interface import MoEKernel, PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel
from kernels.test_proof import Changed
from kernels.test_reference import layer

#: By name of the logging method.
Log = dict[str, list[str]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """What is logged; nothing is proven yet, and a CPU stands for a GPU."""
    told: Log = {"info": [], "warning": [], "error": []}
    for name, lines in told.items():
        # Not through the logging of the process, which vLLM rearranges once another test has imported it.
        monkeypatch.setattr(automatic.logger, name, lambda text, *values, lines=lines: lines.append(text % values))
    monkeypatch.setattr(automatic, "_proven", {})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    return iter([told])


def packed_layer(limit: float = 0.0) -> PackedLayer:
    packed, _ = layer()
    return PackedLayer(packed.name, packed.gate, packed.up, packed.down, limit)


def building(packed: PackedLayer, name: str, factor: float = 1.0) -> Build:
    def build() -> MoEKernel:
        return Changed(ReferenceKernel(packed, torch.float32, "load"), factor, backend=name)

    return build


def refusing(text: str) -> Build:
    def build() -> MoEKernel:
        raise KernelError("extension-missing", text, hint="build it")

    return build


def test_a_wrong_backend_is_left_out_and_said_loudly(log: Iterator[Log]) -> None:
    told, packed = next(log), packed_layer()
    builds = {"first": building(packed, "first", 1.5), "second": building(packed, "second")}
    assert build_automatic(packed, builds, top_k=2, max_tokens=8).backend == "second"
    assert len(told["error"]) == 1
    assert "the first kernels compute WRONG outputs on this GPU" in told["error"][0]
    assert len(told["info"]) == 1
    assert "first      WRONG" in told["info"][0]
    assert "second     right" in told["info"][0]
    assert told["warning"] == []


def test_none_that_is_right_is_an_error_with_all_errors(log: Iterator[Log]) -> None:
    told, packed = next(log), packed_layer()
    builds = {"first": building(packed, "first", 1.5), "second": building(packed, "second", math.nan)}
    with pytest.raises(KernelError) as caught:
        build_automatic(packed, builds, top_k=2, max_tokens=8)
    assert caught.value.id == "kernels-wrong"
    assert caught.value.found.startswith("first 5")
    assert caught.value.found.endswith("second inf")
    assert "GLM53_EXL3_KERNEL=reference" in caught.value.hint
    assert len(told["error"]) == 2


def test_a_backend_that_refuses_is_only_not_there(log: Iterator[Log]) -> None:
    told, packed = next(log), packed_layer()
    builds = {"first": refusing("not installed"), "second": building(packed, "second")}
    assert build_automatic(packed, builds, top_k=2, max_tokens=8).backend == "second"
    assert told["warning"] == [f"{packed.name}: no first kernels: not installed"]
    with pytest.raises(KernelError, match="neither is this"):
        build_automatic(packed_layer(7.0), {"first": refusing("neither is this")}, top_k=2, max_tokens=8)


def test_layers_of_a_kind_are_tried_once(log: Iterator[Log], monkeypatch: pytest.MonkeyPatch) -> None:
    told, packed = next(log), packed_layer()
    builds = {"first": building(packed, "first", 1.5), "second": building(packed, "second")}
    build_automatic(packed, builds, top_k=2, max_tokens=8)
    assert build_automatic(packed, {**builds, "first": refusing("never built")}, 2, 8).backend == "second"
    assert len(told["info"]) == 1
    # Another largest batch, another limit: another kind.
    build_automatic(packed, builds, top_k=2, max_tokens=9)
    build_automatic(packed_layer(7.0), builds, top_k=2, max_tokens=8)
    assert len(told["info"]) == 3


def test_the_fastest_of_each_range_is_built_and_later_layers_build_only_those(
    log: Iterator[Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, packed = next(log), packed_layer()
    times = {"a": [1.0, 1.0, 9.0], "b": [2.0, 2.0, 3.0], "c": [4.0, 4.0, 4.0]}
    monkeypatch.setattr(proof, "_microseconds", lambda kernel, batch: times[kernel.backend].pop(0))
    builds = {name: building(packed, name) for name in times}
    # 1, 2 and 8 tokens are timed; the range changes at the geometric middle of 2 and 8.
    first = build_automatic(packed, builds, top_k=2, max_tokens=8)
    assert first.backend == "a up to 4 tokens, then b"
    assert build_automatic(packed, {**builds, "c": refusing("never built")}, 2, 8).backend == first.backend
    assert "a          right" in told["info"][0]
    assert "microseconds by tokens 1: 1, 2: 1, 8: 9" in told["info"][0]


def test_the_time_that_it_took_is_logged_and_short(log: Iterator[Log]) -> None:
    told, packed = next(log), packed_layer()
    build_automatic(packed, {"first": building(packed, "first")}, top_k=2, max_tokens=40)
    taken = re.search(r"tried on test in (\d+\.\d) s", told["info"][0])
    assert taken is not None
    assert float(taken[1]) < 3


def test_each_batch_goes_to_the_kernel_of_its_range() -> None:
    packed = packed_layer()
    small, large = building(packed, "small")(), building(packed, "large", 2.0)()
    kernel = AutomaticKernel([(4, small), (math.inf, large)])
    assert kernel.backend == "small up to 4 tokens, then large"
    assert kernel.keeps_packed_weights
    for tokens, expected in ((1, small), (4, small), (5, large), (100, large)):
        x = torch.randn(tokens, packed.gate.suh.shape[1])
        ids, weights = torch.zeros(tokens, 2, dtype=torch.int32), torch.full((tokens, 2), 0.5)
        assert torch.equal(kernel(x, ids, weights), expected(x, ids, weights))
