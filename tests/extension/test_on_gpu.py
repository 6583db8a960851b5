"""The installed extension on a GPU, against what exllamav3's own build gave; skips without GPU or module."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

MODULE = "glm53_exl3_exllamav3_ext"
GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "exl3_moe.npz"
#: Kernels add in any order, in fp32; intermediates are fp16. Seen on an H200: 1e-7.
TOLERANCE = 1e-5

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec(MODULE) is None,
    reason=f"needs a GPU and {MODULE}: tools/extension/build.py",
)


def cases() -> list[int]:
    return sorted({int(name.split("/")[1]) for name in np.load(GOLDEN)})


def pointers(archive: Any, prefix: str, keep: list[Tensor]) -> list[Tensor]:
    """Tables of addresses of trellis, suh and svh by expert; `keep` holds what they point to."""
    tables = []
    for part in ("trellis", "suh", "svh"):
        keep.append(torch.from_numpy(archive[f"{prefix}_{part}"]).cuda())
        tables.append(torch.tensor([expert.data_ptr() for expert in keep[-1]], device="cuda"))
    return tables


@pytest.mark.parametrize("case", cases())
def test_moe_is_that_of_exllamav3s_own_build(case: int) -> None:
    module = importlib.import_module(MODULE)
    archive = np.load(GOLDEN)
    prefix = f"moe/{case}"
    meta = json.loads(str(archive[f"{prefix}/meta"]))
    x, ids, weights, expected = (
        torch.from_numpy(archive[f"{prefix}/{name}"]).cuda() for name in ("x", "ids", "w", "out")
    )
    num_experts, top = meta["E"], meta["top"]
    # The last bin takes ids that are no expert's.
    flat = torch.where((ids < 0) | (ids >= num_experts), num_experts, ids).flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device="cuda").scatter_add_(0, flat, torch.ones_like(flat))
    groups, rows = module.exl3_moe_max_concurrency(0), max(len(flat), 16)
    scratch = [torch.empty(groups, rows, meta[size], dtype=torch.half, device="cuda") for size in "HHII"]
    keep: list[Tensor] = []
    tables = [table for name in ("gate", "up", "down") for table in pointers(archive, f"{prefix}/{name}", keep)]
    flags = [meta["codebook"] == "mcg", meta["codebook"] == "mul1"] * 3
    found = torch.zeros_like(expected)
    sorted_rows = (order // top, weights.flatten()[order].half())
    module.exl3_moe(x, found, counts, *sorted_rows, *scratch, 0, *meta["K"], *tables, *flags, float(meta["limit"]), -1)
    torch.cuda.synchronize()
    assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max()
