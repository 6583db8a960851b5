"""Scratch and address tables of the exllamav3 backend."""

from __future__ import annotations

import pytest
import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.exllamav3.shape import MAX_BYTES, Shape, shape_for
from glm53_exl3.kernels.exllamav3.workspace import Workspace
from glm53_exl3.kernels.interface import PackedExperts, PackedLayer
from glm53_exl3.kernels.tables import AddressTables
from kernels.test_reference import layer


@pytest.mark.parametrize(
    ("concurrency", "max_tokens", "rows", "mebibytes"),
    [
        # A GB10 has 48 SMs, 8 an expert; the recipe's 2,048 rows.
        (6, 2048, 2048, 288),
        (6, 8192, 2048, 288),
        (6, 1, 16, 2.25),
        (6, 100, 112, 15.75),
        # An H200: 132 SMs.
        (16, 8192, 2048, 768),
        # 240 SMs: the bound leaves fewer rows, and larger batches more pieces.
        (30, 8192, 1456, 1023.75),
    ],
)
def test_rows_are_those_of_the_largest_batch_within_the_bound(
    concurrency: int, max_tokens: int, rows: int, mebibytes: float
) -> None:
    shape = shape_for(4096, 2048, 288, concurrency, max_tokens)
    assert shape.rows == rows
    assert shape.num_bytes == mebibytes * 2**20 <= MAX_BYTES


@pytest.mark.parametrize("shape", [shape_for(4096, 2048, 288, 6, 2048), Shape(256, 128, 7, 3, 48)])
def test_bytes_that_the_plan_counts_are_those_of_the_tensors(shape: Shape) -> None:
    tensors = Workspace(shape, torch.device("meta")).tensors
    assert sum(tensor.numel() * tensor.element_size() for tensor in tensors) == shape.num_bytes + shape.buffer_bytes


class Moving:
    """Weights that a test moves."""

    def __init__(self, packed: PackedLayer) -> None:
        self.layer = packed
        self.where = 0

    def addresses(self) -> tuple[int, ...]:
        return (self.where,)

    def packed(self) -> PackedLayer:
        return self.layer

    def move(self, device: str = "cpu") -> None:
        copies = [
            PackedExperts(one.trellis.clone().to(device), one.suh.clone().to(device), one.svh.clone().to(device), "mcg")
            for one in (self.layer.gate, self.layer.up, self.layer.down)
        ]
        self.layer, self.where = PackedLayer("moved", *copies), self.where + 1


def test_tables_hold_the_address_of_each_expert_and_follow_a_move() -> None:
    weights = Moving(layer()[0])
    tables = AddressTables(weights)
    places = [table.data_ptr() for table in tables.tables]

    def right() -> bool:
        packed = weights.layer
        held = [part for one in (packed.gate, packed.up, packed.down) for part in (one.trellis, one.suh, one.svh)]
        return all(
            table.tolist() == [expert.data_ptr() for expert in tensor]
            for table, tensor in zip(tables.tables, held, strict=True)
        )

    assert right()
    assert not tables.follow()
    weights.move()
    assert not right()
    assert tables.follow()
    assert right()
    assert [table.data_ptr() for table in tables.tables] == places


def test_move_to_another_device_is_refused() -> None:
    weights = Moving(layer()[0])
    tables = AddressTables(weights)
    weights.move("meta")
    with pytest.raises(KernelError, match="moved after they were loaded, to meta"):
        tables.follow()
