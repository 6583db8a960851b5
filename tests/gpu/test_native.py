"""What only the native backend does."""

from __future__ import annotations

import importlib

import pytest
import torch

from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.errors import KernelError
from glm53_exl3.format.codebooks import Codebook
from glm53_exl3.kernels.accuracy import TOLERANCE
from glm53_exl3.kernels.accuracy import relative_error as error
from glm53_exl3.kernels.interface import FixedWeights, PackedLayer
from glm53_exl3.kernels.native.extension import MODULE
from glm53_exl3.kernels.native.kernel import NativeKernel
from gpu.conftest import is_built
from gpu.layers import GLM, DenseReference, random_batch, random_layer

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 512, 256, 12, 4

pytestmark = pytest.mark.skipif(not is_built(MODULE), reason=f"needs {MODULE}: tools/extension/build.py")


@pytest.fixture(scope="module")
def small() -> PackedLayer:
    return random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2))


def run(kernel: NativeKernel, batch: Batch) -> torch.Tensor:
    return kernel(batch.x, batch.ids, batch.weights)


def test_repetition_gives_the_same_bits(small: PackedLayer) -> None:
    glm = random_layer(*GLM[:3], (2, 2, 2))
    for layer, top_k, sizes in ((small, TOP_K, (1, 50, 600)), (glm, GLM[3], (1, 2, 3, 64, 400, 2048))):
        kernel = NativeKernel(FixedWeights(layer), 2048, top_k)
        for tokens in sizes:
            batch = random_batch(tokens, layer.gate.suh.shape[1], layer.gate.num_experts, top_k)
            first = run(kernel, batch)
            assert error(first, DenseReference(layer)(batch)) < TOLERANCE
            for _ in range(200 if tokens < 100 else 20):
                assert torch.equal(run(kernel, batch), first), tokens


def test_pieces_give_the_same_bits_as_the_whole(small: PackedLayer) -> None:
    whole, pieces = NativeKernel(FixedWeights(small), 2000, TOP_K), NativeKernel(FixedWeights(small), 700, TOP_K)
    batch = random_batch(2000, HIDDEN, EXPERTS, TOP_K)
    assert torch.equal(run(whole, batch), run(pieces, batch))


def test_two_streams_with_two_scratches_run_side_by_side(small: PackedLayer) -> None:
    module = importlib.import_module(MODULE)
    kernel, reference = NativeKernel(FixedWeights(small), 600, TOP_K), DenseReference(small)
    lanes = [torch.cuda.Stream() for _ in range(2)]
    scratches = [torch.zeros_like(kernel._memory.tensor) for _ in lanes]
    batches = [random_batch(tokens, HIDDEN, EXPERTS, TOP_K, seed) for seed, tokens in enumerate((3, 60, 500, 1) * 5)]
    expected = [reference(batch) for batch in batches]
    outputs = [torch.full_like(batch.x, float("nan")) for batch in batches]
    torch.cuda.synchronize()
    for number, (batch, output) in enumerate(zip(batches, outputs, strict=True)):
        with torch.cuda.stream(lanes[number % 2]):
            module.run_layer(
                batch.x,
                batch.ids,
                batch.weights,
                output,
                scratches[number % 2],
                kernel.rows,
                kernel._tables.tables,
                kernel._rates,
                kernel._rate,
                kernel._codebook,
                kernel._intermediate,
                kernel._limit,
            )
    torch.cuda.synchronize()
    for output, right in zip(outputs, expected, strict=True):
        assert error(output, right) < TOLERANCE


@pytest.mark.parametrize("codebook", ["mcg", "mul1", "3inst"])
def test_rates_that_differ_by_expert(codebook: Codebook) -> None:
    """The tables of a layer whose experts have 2, 3 and 6 bits in turn; no pack that the plugin reads is like this."""
    rates = (2, 3, 6)
    layers = [random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (rate,) * 3, codebook) for rate in rates]
    kernels = [NativeKernel(FixedWeights(layer), 600, TOP_K) for layer in layers]
    turn = torch.arange(EXPERTS, device="cuda") % len(rates)
    tables = [
        torch.stack(one).gather(0, turn[None])[0] for one in zip(*(k._tables.tables for k in kernels), strict=True)
    ]
    bits = [torch.tensor(rates, dtype=torch.uint8, device="cuda")[turn]] * 3
    first = kernels[0]
    references = [DenseReference(layer) for layer in layers]
    for tokens in (1, 4, 40, 600):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
        output = torch.full_like(batch.x, float("nan"))
        importlib.import_module(MODULE).run_layer(
            *(batch.x, batch.ids, batch.weights, output, first._memory.tensor, first.rows, tables, bits, 0),
            *(first._codebook, first._intermediate, first._limit),
        )
        expected = torch.zeros(batch.x.shape, device="cuda")
        for number, reference in enumerate(references):
            mine = torch.where(batch.ids % len(rates) == number, batch.ids, -1)
            expected += reference(Batch(batch.x, mine, batch.weights))
        assert error(output, expected) < TOLERANCE, tokens


def test_counters_are_zero_between_calls(small: PackedLayer) -> None:
    kernel = NativeKernel(FixedWeights(small), 600, TOP_K)
    counters = kernel._memory.scratch.counter_bytes
    for tokens in (1, 2, 3, 40, 256, 600):
        batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
        batch.ids[::3, 1] = -1
        run(kernel, batch)
        assert not kernel._memory.tensor[:counters].any(), tokens


def test_calls_with_other_numbers_of_choices_share_the_scratch(small: PackedLayer) -> None:
    kernel, reference = NativeKernel(FixedWeights(small), 600, TOP_K), DenseReference(small)
    for tokens, top_k in ((600, 4), (5, 9), (3, 4), (200, 9), (40, 1), (2, 4), (600, 2), (7, 4)):
        batch = random_batch(tokens, HIDDEN, EXPERTS, top_k)
        assert error(run(kernel, batch), reference(batch)) < TOLERANCE, (tokens, top_k)


def test_refused_call_leaves_the_next_one_right(small: PackedLayer) -> None:
    kernel, batch = NativeKernel(FixedWeights(small), 600, TOP_K), random_batch(20, HIDDEN, EXPERTS, TOP_K)
    with pytest.raises(RuntimeError, match="a float weight for each expert"):
        kernel(batch.x, batch.ids, batch.weights[:, :2])
    assert error(run(kernel, batch), DenseReference(small)(batch)) < TOLERANCE


def test_different_codebooks_in_one_layer_are_refused(small: PackedLayer) -> None:
    other = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2), "mul1")
    with pytest.raises(KernelError, match="the codebooks mcg and mul1"):
        NativeKernel(FixedWeights(PackedLayer("test", small.gate, other.up, small.down)), 64, TOP_K)
