"""A layer small enough for compute-sanitizer: compute-sanitizer --tool racecheck python tests/gpu/small_case.py

One token, a few, and more than the scratch has rows; every third token names one expert fewer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from glm53_exl3.kernels.accuracy import relative_error
from gpu.conftest import BACKENDS, is_built
from gpu.layers import DenseReference, random_batch, random_layer

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 6, 4


def main() -> None:
    """Print the error of each batch."""
    layer = random_layer(HIDDEN, INTERMEDIATE, EXPERTS, (2, 2, 2))
    for backend in BACKENDS:
        if not is_built(backend.module):
            continue
        kernel = backend(layer, 64, TOP_K)
        for tokens in (1, 3, 9, 40, 70):
            batch = random_batch(tokens, HIDDEN, EXPERTS, TOP_K)
            batch.ids[::3, 1] = -1
            found = kernel(batch.x, batch.ids, batch.weights)
            print(f"{backend.name}: {tokens} tokens, error {relative_error(found, DenseReference(layer)(batch)):.1e}")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
