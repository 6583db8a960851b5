"""Which backend a layer gets, on machines with and without a GPU."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace

import pytest
import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels import select
from glm53_exl3.kernels.exllamav3 import extension as exllamav3_extension
from glm53_exl3.kernels.extension import require_arch
from glm53_exl3.kernels.interface import FixedWeights, PackedExperts, PackedLayer
from glm53_exl3.kernels.native import extension as native_extension
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.settings import Backend, KernelSettings
from glm53_exl3.pins import load_pins
from kernels.test_reference import layer


def on_gpu(codebook: str = "mcg") -> FixedWeights:
    """A layer on the meta device, which stands for any device that is not a CPU."""
    packed, _ = layer()
    experts = [
        PackedExperts(one.trellis.to("meta"), one.suh.to("meta"), one.svh.to("meta"), codebook)  # type: ignore[arg-type]
        for one in (packed.gate, packed.up, packed.down)
    ]
    return FixedWeights(PackedLayer("test", *experts))


def build(weights: FixedWeights, backend: Backend = "auto", graphs: bool = False, top_k: int = 2) -> object:
    settings = KernelSettings(backend)
    return select.build_kernel(weights, torch.bfloat16, settings, captures_graphs=graphs, max_tokens=64, top_k=top_k)


def test_a_cpu_multiplies_in_fp32() -> None:
    packed, _ = layer()
    kernel = build(FixedWeights(packed))
    assert isinstance(kernel, ReferenceKernel)
    assert kernel._dense is not None
    assert {weight.dtype for weight in kernel._dense} == {torch.float32}


@pytest.mark.parametrize("backend", ["native", "exllamav3"])
def test_a_compiled_backend_on_a_cpu_is_refused(backend: Backend) -> None:
    packed, _ = layer()
    with pytest.raises(KernelError, match=f"the {backend} backend runs on a GPU") as caught:
        build(FixedWeights(packed), backend)
    assert caught.value.hint == "unset GLM53_EXL3_KERNEL"


def test_missing_extension_is_told_once_and_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(select, "_warned", set())
    monkeypatch.setattr(select, "ReferenceKernel", lambda *arguments: "reference")
    for extension in (native_extension, exllamav3_extension):
        monkeypatch.setattr(extension, "MODULE", "no_such_extension")
    # Not through the logging of the process, which vLLM rearranges once another test has imported it.
    monkeypatch.setattr(select.logger, "warning", lambda text, *values: told.append(text % values))
    assert [build(on_gpu()), build(on_gpu())] == ["reference", "reference"]
    assert len(told) == 1
    assert "run on meta by the reference backend" in told[0]
    assert "no_such_extension does not load" in told[0]


@pytest.mark.parametrize(("backend", "graphs"), [("native", False), ("exllamav3", False), ("auto", True)])
def test_missing_extension_is_refused_where_nothing_else_will_do(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, graphs: bool
) -> None:
    for extension in (native_extension, exllamav3_extension):
        monkeypatch.setattr(extension, "MODULE", "no_such_extension")
    with pytest.raises(KernelError, match="no_such_extension does not load") as caught:
        build(on_gpu(), backend, graphs)
    assert "tools/extension/build.py" in caught.value.hint


def test_reference_refuses_cuda_graphs() -> None:
    with pytest.raises(KernelError, match="no CUDA graph can hold it") as caught:
        build(on_gpu(), "reference", graphs=True)
    assert "--enforce-eager" in caught.value.hint


def test_codebook_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(KernelError, match="test has the codebook 3inst") as caught:
        build(on_gpu("3inst"), "exllamav3")
    assert "GLM53_EXL3_KERNEL=reference" in caught.value.hint


def test_more_experts_a_token_than_exl3_moe_takes_are_refused_before_its_first_call() -> None:
    with pytest.raises(KernelError, match="33 experts a token") as caught:
        build(on_gpu(), "exllamav3", top_k=33)
    assert caught.value.id == "exllamav3-top-k"


def test_extension_without_code_for_the_gpu_is_refused_with_both_archs() -> None:
    module = ModuleType("ext")
    module.arch_list = "9.0a 12.1a"  # type: ignore[attr-defined]
    for capability in ((9, 0), (12, 1)):
        require_arch(module, capability)
    for capability, arch in (((12, 0), "--arch 12.0a"), ((8, 6), "--arch 8.6:")):
        with pytest.raises(KernelError, match="no code for this GPU") as caught:
            require_arch(module, capability)
        assert "code for 9.0a 12.1a" in str(caught.value)
        assert arch in caught.value.hint


@pytest.mark.parametrize(
    ("attributes", "what"),
    [({"moe_arity": 35}, "exl3_moe takes 35 arguments"), ({"run_layer": None}, "it lacks run_layer")],
)
def test_extension_of_another_source_is_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[str, object], what: str
) -> None:
    whole = {"exl3_moe": 1, "exl3_moe_max_concurrency": 1, "run_layer": 1, "moe_arity": load_pins().moe_arity}
    found = {name: value for name, value in (whole | attributes).items() if value is not None}
    module = SimpleNamespace(**found, source_revision="abc", __file__="ext.so")
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    with pytest.raises(KernelError) as caught:
        exllamav3_extension.load_extension()
    assert what in str(caught.value)
    assert f"exl3_moe of {load_pins().moe_arity} arguments" in str(caught.value)
