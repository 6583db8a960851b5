"""What only the exllamav3 backend does."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.accuracy import TOLERANCE
from glm53_exl3.kernels.accuracy import relative_error as error
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import FixedWeights, PackedLayer
from gpu.conftest import MODULE, is_built
from gpu.layers import GLM, DenseReference, random_batch, random_layer

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 512, 256, 12, 4

pytestmark = pytest.mark.skipif(not is_built(MODULE), reason=f"needs {MODULE}: tools/extension/build.py")


@pytest.fixture(scope="module")
def small() -> PackedLayer:
    return random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2))


def test_repetition_differs_by_rounding_only(small: PackedLayer) -> None:
    glm = random_layer(*GLM[:3], (2, 2, 2))
    for layer, tokens, top_k in ((small, 50, TOP_K), (glm, 1, GLM[3]), (glm, 64, GLM[3])):
        kernel = ExllamaKernel(FixedWeights(layer), 64, TOP_K)
        batch = random_batch(tokens, layer.gate.suh.shape[1], layer.gate.num_experts, top_k)
        expected = DenseReference(layer)(batch)
        errors = [error(kernel(batch.x, batch.ids, batch.weights), expected) for _ in range(200)]
        assert max(errors) < TOLERANCE
        assert max(errors) - min(errors) < 1e-3


def test_3inst_is_refused_by_name() -> None:
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2), "3inst")
    with pytest.raises(KernelError, match="has the codebook 3inst"):
        ExllamaKernel(FixedWeights(layer), 64, TOP_K)


def test_wrong_arguments_are_refused(small: PackedLayer) -> None:
    kernel, batch = ExllamaKernel(FixedWeights(small), 64, TOP_K), random_batch(2, HIDDEN, EXPERTS, TOP_K)
    with pytest.raises(KernelError, match="33 experts a token"):
        kernel(batch.x, torch.zeros(2, 33, dtype=torch.int32, device="cuda"), torch.zeros(2, 33, device="cuda"))
    with pytest.raises(RuntimeError, match="another hidden size"):
        kernel(torch.zeros(2, 256, dtype=torch.bfloat16, device="cuda"), batch.ids, batch.weights)
