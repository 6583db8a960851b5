"""The exllamav3 backend on a GPU against fp32 products over dequantized weights."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.bench_kernels.oracle import relative_error as error
from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import FixedWeights, PackedExperts, PackedLayer
from glm53_exl3.kernels.select import build_kernel
from glm53_exl3.kernels.settings import KernelSettings
from gpu.layers import GLM, DenseReference, random_batch, random_layer

#: bf16 output alone is 2^-9 of a value; intermediates are fp16.
TOLERANCE = 5e-3
HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 512, 256, 12, 4


@pytest.fixture(scope="module")
def small() -> PackedLayer:
    return random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2))


def run(kernel: ExllamaKernel, batch: Batch) -> torch.Tensor:
    return kernel(batch.x, batch.ids, batch.weights)


@pytest.mark.parametrize("bits", [(2, 2, 2), (3, 3, 3), (2, 3, 4)])
def test_glm_layer_at_every_batch_size(bits: tuple[int, int, int]) -> None:
    hidden, intermediate, experts, top_k = GLM
    layer = random_layer(hidden, intermediate, experts, bits)
    kernel, reference = ExllamaKernel(FixedWeights(layer), 8192), DenseReference(layer)
    rows = kernel.rows
    for tokens in sorted({1, 2, 3, 15, 16, 17, 128, rows - 1, rows, rows + 1, 2 * rows, 2 * rows + 1, 8192}):
        batch = random_batch(tokens, hidden, experts, top_k)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, tokens


@pytest.mark.parametrize("codebook", ["mcg", "mul1"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_bit_rate_and_codebook(bits: int, codebook: str) -> None:
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (bits, bits, bits), codebook)  # type: ignore[arg-type]
    kernel, batch = ExllamaKernel(FixedWeights(layer), 64), random_batch(40, HIDDEN, EXPERTS, TOP_K)
    assert error(run(kernel, batch), DenseReference(layer)(batch)) < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_types_of_activations_and_ids(small: PackedLayer, dtype: torch.dtype, ids: torch.dtype) -> None:
    batch = random_batch(9, HIDDEN, EXPERTS, TOP_K)
    batch = Batch(batch.x.to(dtype), batch.ids.to(ids), batch.weights)
    found = run(ExllamaKernel(FixedWeights(small), 64), batch)
    assert found.dtype == dtype
    assert error(found, DenseReference(small)(batch)) < TOLERANCE


@pytest.mark.parametrize("tokens", [1, 40, 64, 65, 700])
def test_skew_drops_no_row(small: PackedLayer, tokens: int) -> None:
    """All tokens on the same experts, with pieces of 64 tokens."""
    kernel = ExllamaKernel(FixedWeights(small), 64)
    assert kernel.rows == 64
    batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    batch.ids[:] = torch.arange(TOP_K, dtype=torch.int32)
    assert error(run(kernel, batch), DenseReference(small)(batch)) < TOLERANCE


def test_an_expert_named_twice_adds_both_weights(small: PackedLayer) -> None:
    batch = random_batch(70, HIDDEN, EXPERTS, TOP_K)
    batch.ids[:, 1] = batch.ids[:, 0]
    batch.ids[::3] = 5
    assert error(run(ExllamaKernel(FixedWeights(small), 64), batch), DenseReference(small)(batch)) < TOLERANCE


def test_choices_of_nobody_add_nothing(small: PackedLayer) -> None:
    kernel = ExllamaKernel(FixedWeights(small), 64)
    batch = random_batch(33, HIDDEN, EXPERTS, TOP_K)
    batch.ids[::2, 1] = -1
    batch.ids[::3, 2] = EXPERTS
    batch.ids[7] = -1
    found = run(kernel, batch)
    assert error(found, DenseReference(small)(batch)) < TOLERANCE
    assert not found[7].any()
    batch.ids[:] = -1
    assert not run(kernel, batch).any()
    nothing = random_batch(0, HIDDEN, EXPERTS, TOP_K)
    assert run(kernel, nothing).shape == (0, HIDDEN)


def test_values_beyond_fp16_are_capped(small: PackedLayer) -> None:
    kernel, batch = ExllamaKernel(FixedWeights(small), 64), random_batch(2, HIDDEN, EXPERTS, TOP_K)
    batch.x[0] = 0
    batch.x[0, 5] = 1e6
    assert run(kernel, batch).isfinite().all()


def test_nan_stays_in_its_row() -> None:
    """Without a limit; exl3_moe's limit itself takes NaN for the limit."""
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2), limit=0.0)
    batch = random_batch(3, HIDDEN, EXPERTS, TOP_K)
    batch.x[1, 3] = float("nan")
    found = run(ExllamaKernel(FixedWeights(layer), 64), batch)
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


def test_repetition_differs_by_rounding_only(small: PackedLayer) -> None:
    glm = random_layer(*GLM[:3], (2, 2, 2))
    for layer, tokens, top_k in ((small, 50, TOP_K), (glm, 1, GLM[3]), (glm, 64, GLM[3])):
        kernel = ExllamaKernel(FixedWeights(layer), 64)
        batch = random_batch(tokens, layer.gate.suh.shape[1], layer.gate.num_experts, top_k)
        expected = DenseReference(layer)(batch)
        errors = [error(run(kernel, batch), expected) for _ in range(200)]
        assert max(errors) < TOLERANCE
        assert max(errors) - min(errors) < 1e-3


def test_3inst_goes_to_the_reference_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """exllamav3 has no MoE kernels for it; a recorded engine has no other backend."""
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2), "3inst")
    with pytest.raises(KernelError, match="3inst"):
        build_kernel(FixedWeights(layer), torch.bfloat16, KernelSettings(), captures_graphs=True, max_tokens=64)
    with caplog.at_level("WARNING"):
        kernel = build_kernel(
            FixedWeights(layer), torch.bfloat16, KernelSettings(), captures_graphs=False, max_tokens=64
        )
    assert kernel.backend == "reference"
    assert "has the codebook 3inst" in caplog.text
    batch = random_batch(9, HIDDEN, EXPERTS, TOP_K)
    assert error(kernel(batch.x, batch.ids, batch.weights), DenseReference(layer)(batch)) < 2 * TOLERANCE


@pytest.mark.parametrize("tokens", [1, 8, 64, 65])
def test_graph_replays_with_changing_inputs(small: PackedLayer, tokens: int) -> None:
    kernel, reference = ExllamaKernel(FixedWeights(small), 64), DenseReference(small)
    held = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(kernel, held)
    for seed in range(1, 6):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K, seed)
        if seed == 3:
            batch.ids[:] = 2
        held.x.copy_(batch.x)
        held.ids.copy_(batch.ids)
        held.weights.copy_(batch.weights)
        graph.replay()
        assert error(output, reference(batch)) < TOLERANCE
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE


def test_layers_share_their_scratch(small: PackedLayer) -> None:
    other = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (3, 3, 3))
    first, second = ExllamaKernel(FixedWeights(small), 64), ExllamaKernel(FixedWeights(other), 64)
    assert first._workspace is second._workspace
    batch = random_batch(20, HIDDEN, EXPERTS, TOP_K)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = run(first, batch)
        output = run(second, Batch(middle, batch.ids, batch.weights))
    graph.replay()
    assert error(middle, DenseReference(small)(batch)) < TOLERANCE
    assert error(output, DenseReference(other)(Batch(middle, batch.ids, batch.weights))) < TOLERANCE


def test_streams_take_turns(small: PackedLayer) -> None:
    kernel, reference = ExllamaKernel(FixedWeights(small), 64), DenseReference(small)
    batches = [random_batch(60, HIDDEN, EXPERTS, TOP_K, seed) for seed in range(8)]
    expected = [reference(batch) for batch in batches]
    torch.cuda.synchronize()
    lanes = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for number, batch in enumerate(batches):
        with torch.cuda.stream(lanes[number % 2]):
            found.append(run(kernel, batch))
    torch.cuda.synchronize()
    for one, right in zip(found, expected, strict=True):
        assert error(one, right) < TOLERANCE


class Moving:
    """Weights that are moved after the kernel was built."""

    def __init__(self, layer: PackedLayer) -> None:
        self.layer, self.where = layer, 0

    def addresses(self) -> tuple[int, ...]:
        return (self.where,)

    def packed(self) -> PackedLayer:
        return self.layer

    def move(self) -> None:
        copies = []
        for one in (self.layer.gate, self.layer.up, self.layer.down):
            copies.append(PackedExperts(one.trellis.clone(), one.suh.clone(), one.svh.clone(), one.codebook))
            one.trellis.zero_()
            one.suh.fill_(float("nan"))
        self.layer, self.where = PackedLayer("test", *copies, self.layer.limit), self.where + 1


def test_moved_weights_are_followed_and_a_recorded_graph_too() -> None:
    weights = Moving(random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2)))
    kernel, batch = ExllamaKernel(weights, 64), random_batch(5, HIDDEN, EXPERTS, TOP_K)
    expected = DenseReference(weights.layer)(batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(kernel, batch)
    weights.move()
    with (
        pytest.raises(KernelError, match="before the capture of a CUDA graph"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        run(kernel, batch)
    assert error(run(kernel, batch), expected) < TOLERANCE
    graph.replay()
    assert error(output, expected) < TOLERANCE


def test_wrong_arguments_are_refused(small: PackedLayer) -> None:
    kernel, batch = ExllamaKernel(FixedWeights(small), 64), random_batch(2, HIDDEN, EXPERTS, TOP_K)
    with pytest.raises(KernelError, match="33 experts a token"):
        kernel(batch.x, torch.zeros(2, 33, dtype=torch.int32, device="cuda"), torch.zeros(2, 33, device="cuda"))
    with pytest.raises(RuntimeError, match="expected fp16 or bf16"):
        kernel(batch.x.float(), batch.ids, batch.weights)
    with pytest.raises(RuntimeError, match="another hidden size"):
        kernel(torch.zeros(2, 256, dtype=torch.bfloat16, device="cuda"), batch.ids, batch.weights)
