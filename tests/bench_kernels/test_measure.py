"""A measurement on the CPU, through the real reference backend, and with backends that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from glm53_exl3.bench_kernels.backends import Backend, Built, choose, known_backends
from glm53_exl3.bench_kernels.grouped_gemm import DenseWeights
from glm53_exl3.bench_kernels.layers import Batch, random_batch, random_layer, touched_experts
from glm53_exl3.bench_kernels.measure import measure
from glm53_exl3.bench_kernels.oracle import expected_outputs
from glm53_exl3.bench_kernels.result import KernelBench, require_right
from glm53_exl3.bench_kernels.settings import KernelBenchSettings, Options, read_options
from glm53_exl3.bench_kernels.timing import Call, copy_bandwidth, time_wall
from glm53_exl3.decode import Exl3Tensor, moe_reference
from glm53_exl3.errors import Glm53Error, KernelError
from glm53_exl3.kernels.accuracy import relative_error
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel

CPU = torch.device("cpu")


def settings(**changed: object) -> KernelBenchSettings:
    small = {"hidden": 256, "intermediate": 128, "experts": 6, "top_k": 2, "tokens": "1,5", "repeat": 2}
    return read_options(Options(profile="small", **{**small, **changed}), "small")  # type: ignore[arg-type]


def measured(asked: KernelBenchSettings, *backends: Backend) -> KernelBench:
    return measure(asked, CPU, backends or list(known_backends(CPU).values()), lambda line: None)


def backend(change: Callable[[torch.Tensor], torch.Tensor], name: str = "changed") -> Backend:
    """The reference with its output changed."""

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        kernels = [ReferenceKernel(layer, torch.float32, "call") for layer in layers]
        return Built(
            lambda number, batch: Call(lambda: change(kernels[number](batch.x, batch.ids, batch.weights))), "changed"
        )

    return Backend(name, build, captured=True)


@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
def test_the_reference_is_right_for_every_codebook_and_mixed_bits(codebook: str) -> None:
    found = measured(settings(codebook=codebook, bits="2,3,4"))
    require_right(found)
    assert [row.tokens for row in found.rows] == [1, 5]
    first = found.rows[0]
    assert list(first.cells) == ["reference"]
    cell = first.cells["reference"]
    # Its output is bf16, so that no error at all would mean that nothing was compared.
    assert 0 < cell.error < 5e-3
    assert (cell.clock, cell.microseconds.count) == ("wall", 2)
    assert first.experts == 2
    assert first.weight_bytes == 2 * (256 * 128 * (2 + 3 + 4) // 8 + 3 * 2 * (256 + 128))
    assert first.cold is None
    assert first.gemm is not None
    assert found.gemm == "a loop of matmuls, float32"
    assert found.bandwidth.p50 > 1e8
    assert found.machine["gpu"] is None


@pytest.mark.parametrize(
    "change",
    [
        lambda output: output * 1.02,
        torch.zeros_like,
        lambda output: output.roll(1, -1),
        lambda output: output.index_fill(1, torch.tensor([7]), 0),
        lambda output: output.index_fill(1, torch.tensor([7]), float("nan")),
        lambda output: output[:, :128],
    ],
)
def test_a_wrong_kernel_is_found(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = measured(settings(), backend(lambda output: output, "right"), backend(change, "broken"))
    assert all(row.cells["right"].is_right for row in found.rows)
    with pytest.raises(Glm53Error, match=r"broken at T=1 by .*broken at T=5 by") as caught:
        require_right(found)
    assert caught.value.id == "kernel-wrong"
    assert "right at" not in caught.value.what


def test_a_kernel_that_is_wrong_for_one_batch_size_only_is_found() -> None:
    found = measured(settings(), backend(lambda output: output * (2 if len(output) > 1 else 1)))
    with pytest.raises(Glm53Error, match=r"reference: changed at T=5 by 1\n"):
        require_right(found)


def test_a_backend_that_cannot_run_is_left_out_unless_it_was_named() -> None:
    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        raise KernelError("extension-missing", "no extension", hint="build it")

    missing = Backend("missing", build, captured=True)
    found = measured(settings(), missing, *known_backends(CPU).values())
    assert found.left_out == {"missing": "no extension"}
    assert list(found.rows[0].cells) == ["reference"]
    with pytest.raises(KernelError, match="no extension"):
        measured(settings(backend=("missing",)), missing)


def test_the_oracle_agrees_with_the_reference_of_the_decoder() -> None:
    asked = settings(bits="3,2,4")
    layer = random_layer(asked, 0, CPU)
    batches = [random_batch(asked, tokens, 0, CPU) for tokens in (1, 9)]

    def experts(packed: PackedExperts) -> list[Exl3Tensor]:
        return [
            Exl3Tensor(packed.trellis[one], packed.suh[one], packed.svh[one], packed.codebook)
            for one in range(packed.num_experts)
        ]

    for batch, found in zip(batches, expected_outputs(layer, batches), strict=True):
        expected = moe_reference(
            batch.x, batch.ids, batch.weights, experts(layer.gate), experts(layer.up), experts(layer.down), layer.limit
        )
        assert relative_error(found, expected) < 1e-5


def test_errors_are_relative_to_the_largest_value() -> None:
    expected = torch.tensor([[2.0, -10.0]])
    assert relative_error(expected + torch.tensor([[0.1, 0.0]]), expected) == pytest.approx(0.01)
    assert relative_error(torch.full((1, 2), float("inf")), expected) == math.inf
    assert relative_error(torch.empty(0, 2), torch.empty(0, 2)) == 0.0


def test_layers_and_batches_follow_the_seed_and_their_number() -> None:
    asked = settings()
    layer, again, other = random_layer(asked, 0, CPU), random_layer(asked, 0, CPU), random_layer(asked, 1, CPU)
    assert torch.equal(layer.gate.trellis, again.gate.trellis)
    assert not torch.equal(layer.gate.trellis, other.gate.trellis)
    batch = random_batch(asked, 4, 0, CPU)
    assert torch.equal(batch.x, random_batch(asked, 4, 0, CPU).x)
    assert not torch.equal(batch.x, random_batch(asked, 4, 1, CPU).x)
    assert not torch.equal(batch.x, random_batch(settings(seed=1), 4, 0, CPU).x)


@pytest.mark.parametrize("routing", ["uniform", "skewed"])
def test_a_token_names_different_experts_and_skew_prefers_the_first(routing: str) -> None:
    asked = settings(routing=routing, experts=64, top_k=4)
    batch = random_batch(asked, 500, 0, CPU)
    assert all(len(set(ids)) == 4 for ids in batch.ids.tolist())
    assert batch.weights.sum(-1).allclose(torch.ones(500))
    share = (batch.ids < 8).float().mean().item()
    # An eighth of the experts takes an eighth of the choices, or nearly half of them.
    assert share == pytest.approx(0.125, abs=0.03) if routing == "uniform" else share > 0.4


def test_all_tokens_of_a_call_may_go_to_the_same_experts() -> None:
    asked = settings(routing="same", experts=64, top_k=4)
    first, second = (random_batch(asked, 50, number, CPU) for number in (0, 1))
    assert first.ids.is_contiguous()
    assert len(touched_experts(first)) == 4
    assert all(ids == first.ids[0].tolist() for ids in first.ids.tolist())
    assert touched_experts(first) != touched_experts(second)
    found = measured(asked)
    require_right(found)
    assert [row.experts for row in found.rows] == [4, 4]


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
def test_grouped_products_are_those_of_the_loop_whoever_is_idle() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> torch.Tensor:
        return (torch.randn(*size, generator=generator) * size[-2] ** -0.5).bfloat16()

    weights = draw(6, 64, 32), draw(6, 64, 32), draw(6, 32, 64)
    ids = torch.tensor([[5, 0], [0, 3], [3, 5]], dtype=torch.int32)
    batch = Batch(draw(3, 64), ids, torch.full((3, 2), 0.5))
    grouped = DenseWeights(*weights, "torch._grouped_mm").prepare(batch).run()
    _, up, down = weights
    pairs = [(0, 0), (0, 1), (3, 1), (3, 2), (5, 0), (5, 2)]
    expected = torch.stack([batch.x[token] @ up[expert] @ down[expert] for expert, token in pairs])
    assert relative_error(grouped, expected.float()) < 0.02
    # The loop returns the rows of the last expert.
    loop = DenseWeights(*weights, "a loop of matmuls").prepare(batch).run()
    assert relative_error(loop, expected[4:].float()) < 0.02
    assert touched_experts(batch) == [0, 3, 5]


def test_dense_weights_that_do_not_fit_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm53_exl3.bench_kernels.measure.free_bytes", lambda device: 1000)
    found = measured(settings())
    assert found.gemm.startswith("left out: ")
    assert [row.gemm for row in found.rows] == [None, None]
    require_right(found)


def test_the_reference_decodes_in_each_call_where_dense_weights_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = measured(settings()).details["reference"]
    monkeypatch.setattr("glm53_exl3.bench_kernels.backends.free_bytes", lambda device: 1000)
    found = measured(settings())
    require_right(found)
    assert "once" in before
    assert "in each call" in found.details["reference"]


def test_a_call_is_reset_before_its_output_is_taken() -> None:
    total = torch.zeros(1)

    def add() -> torch.Tensor:
        total.add_(1)
        return total

    timed = time_wall([Call(add, lambda: total.zero_() and None)], 7, CPU)
    assert timed.outputs[0].item() == 1
    assert timed.microseconds.count == 7


def test_bandwidth_counts_what_is_read_and_what_is_written() -> None:
    found = copy_bandwidth(CPU)
    assert 0 < found.p10 <= found.p50 <= found.p90


def test_a_device_knows_its_backends() -> None:
    on_gpu = known_backends(torch.device("cuda"))
    assert list(on_gpu) == ["native", "exllamav3", "exl3_moe", "decoded", "reference"]
    assert [each.captured for each in on_gpu.values()] == [True, True, True, True, False]
    assert [each.name for each in choose(("reference", "exl3_moe"), on_gpu, "cuda")] == ["reference", "exl3_moe"]
    with pytest.raises(Glm53Error, match="no backend exllamav3 on cpu") as caught:
        choose(("exllamav3",), known_backends(CPU), "cpu")
    assert (caught.value.id, caught.value.hint) == ("kernel-bench-backend", "--backend reference")
