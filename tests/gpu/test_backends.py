"""Every compiled backend on a GPU against fp32 products over dequantized weights."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.errors import KernelError
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.kernels.accuracy import TOLERANCE
from glm53_exl3.kernels.accuracy import relative_error as error
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from gpu.conftest import Kernel, KernelBackend
from gpu.layers import GLM, DenseReference, random_batch, random_layer

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 512, 256, 12, 4


@pytest.fixture(scope="module")
def small() -> PackedLayer:
    return random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2))


def run(kernel: Kernel, batch: Batch) -> torch.Tensor:
    poison_free_memory()
    return kernel(batch.x, batch.ids, batch.weights)


def poison_free_memory() -> None:
    """What the allocator hands out next holds NaN, so that an output nobody writes is not mistaken for a right one."""
    if not torch.cuda.is_current_stream_capturing():
        for size in (1 << 12, 1 << 16, 1 << 19, 1 << 22, 1 << 25):
            torch.full((size,), float("nan"), device="cuda")


@pytest.mark.parametrize("bits", [(2, 2, 2), (3, 3, 3), (2, 3, 4)])
def test_glm_layer_at_every_batch_size(backend: KernelBackend, bits: tuple[int, int, int]) -> None:
    hidden, intermediate, experts, top_k = GLM
    layer = random_layer(hidden, intermediate, experts, bits)
    kernel, reference = backend(layer, 8192, top_k), DenseReference(layer)
    rows = kernel.rows
    # Both sides of: multiprocessors, the decode path's 1,024 choices, heights of tiles, pieces.
    bounds = {1, 2, 3, 15, 16, 17, 127, 128, 129, 300, 2047, 2048, 2049, rows - 1, rows, rows + 1, 8192}
    for tokens in sorted(bounds):
        batch = random_batch(tokens, hidden, experts, top_k)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, tokens


@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_bit_rate_and_codebook(backend: KernelBackend, bits: int, codebook: Codebook) -> None:
    if (backend.name, codebook) == ("exllamav3", "3inst"):
        pytest.skip("exllamav3 has no such kernels")
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (bits, bits, bits), codebook)
    kernel, reference = backend(layer, 512, TOP_K), DenseReference(layer)
    for tokens in (1, 5, 40, 300):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, tokens


@pytest.mark.parametrize("bits", [(1, 8, 5), (8, 1, 5), (6, 2, 3), (3, 3, 7)])
def test_rates_that_differ_by_projection(backend: KernelBackend, bits: tuple[int, int, int]) -> None:
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, bits, "mul1")
    kernel, reference = backend(layer, 512, TOP_K), DenseReference(layer)
    for tokens in (1, 40, 300):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, tokens


@pytest.mark.parametrize(("hidden", "intermediate"), [(128, 128), (384, 128), (640, 384), (128, 896)])
def test_widths_of_odd_multiples_of_128(backend: KernelBackend, hidden: int, intermediate: int) -> None:
    layer = random_layer(hidden, intermediate, 7, (2, 2, 2))
    kernel, reference = backend(layer, 512, 3), DenseReference(layer)
    for tokens in (1, 20, 400):
        batch = random_batch(tokens, hidden, 7, 3)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, tokens


@pytest.mark.parametrize("top_k", [1, 2, 9, 16])
def test_any_number_of_experts_a_token(backend: KernelBackend, top_k: int) -> None:
    layer = random_layer(HIDDEN, INTERMEDIATE, 20, (2, 2, 2))
    for built_for in (top_k, 6):
        kernel, reference = backend(layer, 200, built_for), DenseReference(layer)
        for tokens in (1, 30, 250):
            batch = random_batch(tokens, HIDDEN, 20, top_k)
            assert error(run(kernel, batch), reference(batch)) < TOLERANCE, (tokens, built_for)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_types_of_activations_and_ids(
    backend: KernelBackend, small: PackedLayer, dtype: torch.dtype, ids: torch.dtype
) -> None:
    kernel = backend(small, 512, TOP_K)
    for tokens in (9, 300):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
        batch = Batch(batch.x.to(dtype), batch.ids.to(ids), batch.weights)
        found = run(kernel, batch)
        assert found.dtype == dtype
        assert error(found, DenseReference(small)(batch)) < TOLERANCE


@pytest.mark.parametrize("tokens", [1, 40, 64, 65, 700])
def test_skew_drops_no_row(backend: KernelBackend, small: PackedLayer, tokens: int) -> None:
    """All tokens on the same experts, with pieces of 64 tokens and of as many as there are."""
    batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    batch.ids[:] = torch.arange(TOP_K, dtype=torch.int32)
    for max_tokens in (64, 1024):
        kernel = backend(small, max_tokens, TOP_K)
        assert kernel.rows == max_tokens
        assert error(run(kernel, batch), DenseReference(small)(batch)) < TOLERANCE


@pytest.mark.parametrize("tokens", [70, 600])
def test_an_expert_named_twice_adds_both_weights(backend: KernelBackend, small: PackedLayer, tokens: int) -> None:
    batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    batch.ids[:, 1] = batch.ids[:, 0]
    batch.ids[::3] = 5
    assert error(run(backend(small, 600, TOP_K), batch), DenseReference(small)(batch)) < TOLERANCE


@pytest.mark.parametrize("tokens", [33, 600])
def test_choices_of_nobody_add_nothing(backend: KernelBackend, small: PackedLayer, tokens: int) -> None:
    kernel = backend(small, 600, TOP_K)
    batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
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


@pytest.mark.parametrize("tokens", [2, 600])
def test_values_beyond_fp16_stay_finite(backend: KernelBackend, small: PackedLayer, tokens: int) -> None:
    kernel, batch = backend(small, 600, TOP_K), random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    batch.x[0] = 0
    batch.x[0, 5] = 1e6
    assert run(kernel, batch).isfinite().all()


@pytest.mark.parametrize("tokens", [3, 600])
def test_nan_stays_in_its_row(backend: KernelBackend, tokens: int) -> None:
    """Without a limit; exl3_moe's limit itself takes NaN for the limit."""
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2), limit=0.0)
    batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    batch.x[1, 3] = float("nan")
    found = run(backend(layer, 600, TOP_K), batch)
    assert found[1].isnan().all()
    assert found[[0, *range(2, tokens)]].isfinite().all()


@pytest.mark.parametrize("tokens", [1, 8, 64, 65, 600])
def test_graph_replays_with_changing_inputs(backend: KernelBackend, small: PackedLayer, tokens: int) -> None:
    kernel, reference = backend(small, 600, TOP_K), DenseReference(small)
    held = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run(kernel, held)
    for seed in range(1, 6):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K, seed)
        if seed == 3:
            batch.ids[:] = 2
        if seed == 4:
            batch.ids[: tokens // 2] = -1
        held.x.copy_(batch.x)
        held.ids.copy_(batch.ids)
        held.weights.copy_(batch.weights)
        output.fill_(float("nan"))
        graph.replay()
        assert error(output, reference(batch)) < TOLERANCE
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE


def test_layers_share_their_scratch(backend: KernelBackend, small: PackedLayer) -> None:
    other = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (3, 3, 3))
    before = torch.cuda.memory_allocated()
    first = backend(small, 600, TOP_K)
    grown = torch.cuda.memory_allocated() - before
    second = backend(other, 600, TOP_K)
    assert torch.cuda.memory_allocated() - before < grown + (1 << 16)
    batch = random_batch(20, HIDDEN, EXPERTS, TOP_K)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        middle = run(first, batch)
        output = run(second, Batch(middle, batch.ids, batch.weights))
    graph.replay()
    assert error(middle, DenseReference(small)(batch)) < TOLERANCE
    assert error(output, DenseReference(other)(Batch(middle, batch.ids, batch.weights))) < TOLERANCE


def test_streams_take_turns(backend: KernelBackend, small: PackedLayer) -> None:
    kernel, reference = backend(small, 600, TOP_K), DenseReference(small)
    batches = [
        random_batch(tokens, HIDDEN, EXPERTS, TOP_K, seed) for seed, tokens in enumerate((60, 60, 500, 3, 60, 500))
    ]
    expected = [reference(batch) for batch in batches]
    torch.cuda.synchronize()
    lanes = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for number, batch in enumerate(batches):
        with torch.cuda.stream(lanes[number % 2]):
            found.append(kernel(batch.x, batch.ids, batch.weights))
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


def test_moved_weights_are_followed_and_a_recorded_graph_too(backend: KernelBackend) -> None:
    weights = Moving(random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2)))
    kernel, batch = backend.of(weights, 64, TOP_K), random_batch(5, HIDDEN, EXPERTS, TOP_K)
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


def test_wrong_arguments_are_refused(backend: KernelBackend, small: PackedLayer) -> None:
    kernel, batch = backend(small, 64, TOP_K), random_batch(2, HIDDEN, EXPERTS, TOP_K)
    with pytest.raises(RuntimeError, match="expected fp16 or bf16"):
        kernel(batch.x.float(), batch.ids, batch.weights)
    with pytest.raises(RuntimeError, match="hidden size"):
        kernel(torch.zeros(2, 250, dtype=torch.bfloat16, device="cuda"), batch.ids, batch.weights)
