"""Bulk reading of experts: every byte where the tensor-by-tensor loader puts it, and the same refusals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from glm53_exl3.engine import bulk_read, reader
from glm53_exl3.engine.bulk_read import BulkRead
from glm53_exl3.engine.loader import ExpertLoader
from glm53_exl3.engine.parameters import ExpertParameters, local_sizes
from glm53_exl3.engine.read_plan import BRIDGE_BYTES, MOST_PIECES, RUN_BYTES, Piece, plan_runs
from glm53_exl3.engine.read_targets import Part, iter_pieces, parts_of_layer
from glm53_exl3.engine.transfer import Event, cuda_transfers
from glm53_exl3.errors import Glm53Error
from glm53_exl3.format.names import parse_expert, split_tensor
from glm53_exl3.pack.inventory import Inventory, read_inventory
from glm53_exl3.pack.moe_layers import MoELayer
from support.packs import PackRecipe, edit_tensors, write_pack

SHARD_OF = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
#: Layer 1 with 2, 3 and 4 bits, layer 2 with 2; wide enough for two ranks.
MIXED = PackRecipe(bits={1: (2, 3, 4), 2: 2}, stated={"quant_method": "exl3"}, width=256, hidden=384)


class DelayedCopies:
    """A device whose copies happen only when an event is waited for: a buffer used too early gives wrong bytes."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []

    def buffer(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert (target.shape, target.dtype) == (source.shape, source.dtype)
        assert source.is_contiguous()
        assert target.is_contiguous()
        self._asked.append((target, source))

    def record(self) -> Event:
        return _After(self._asked, len(self._asked))


class _After:
    def __init__(self, asked: list[tuple[torch.Tensor, torch.Tensor]], count: int) -> None:
        self._asked, self._count = asked, count

    def synchronize(self) -> None:
        for target, source in self._asked[: self._count]:
            target.copy_(source)
        # Others still count on their places in the list.
        self._asked[: self._count] = [(torch.empty(0), torch.empty(0))] * self._count


def make_loader(
    layer: MoELayer, tp_size: int = 1, tp_rank: int = 0, ep_size: int = 1, ep_rank: int = 0
) -> ExpertLoader:
    """Loader of one rank, with parameters full of ones."""
    gate = layer.projections["gate_proj"]
    held = layer.num_experts // ep_size
    local = {ep_rank * held + slot: slot for slot in range(held)}
    sizes = local_sizes(layer, held, gate.in_features, gate.out_features // tp_size, tp_size, tp_rank)
    loader = ExpertLoader(layer, sizes, lambda expert: local.get(expert, -1))
    loader.views = ExpertParameters(torch.nn.Module(), layer, sizes, loader).views
    for view in loader.views.values():
        view.fill_(1)
    return loader


def make_loaders(inventory: Inventory, **rank: int) -> list[ExpertLoader]:
    return [make_loader(layer, **rank) for layer in inventory.layers.values()]


def load_one_by_one(pack: Path, loaders: Sequence[ExpertLoader]) -> None:
    """As vLLM's models do it."""
    by_block = {loader.layer.block: loader for loader in loaders}
    for shard in sorted(pack.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            module, suffix = split_tensor(name)
            expert = parse_expert(module)
            assert expert is not None
            by_block[expert.block](None, tensor, "", SHARD_OF[expert.projection], expert.expert, suffix=suffix)  # type: ignore[arg-type]


def load_in_bulk(
    inventory: Inventory,
    loaders: Sequence[ExpertLoader],
    *,
    readers: int = 3,
    run_bytes: int = 40_000,
    on_device: bool = False,
    drop: bool = False,
) -> int:
    """Returns the bytes that were counted. Runs are small, so that there are many."""
    parts = [part for loader in loaders for part in parts_of_layer(loader)]
    if on_device:
        parts = [Part(part.loader, part.projection, part.suffix, True) for part in parts]
    counted: list[int] = []
    runs = plan_runs(iter_pieces(parts, inventory.tensors), run_bytes)
    transfer = DelayedCopies if on_device else None
    BulkRead(parts, runs, counted.append, transfer, drop).run(readers)
    return sum(counted)


def same(left: Sequence[ExpertLoader], right: Sequence[ExpertLoader]) -> bool:
    return all(
        torch.equal(one.views[key], other.views[key])
        for one, other in zip(left, right, strict=True)
        for key in one.views
    )


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pack(tmp_path / "pack", MIXED)


RANKS = {
    "whole": {},
    "tensor parallel, first": {"tp_size": 2, "tp_rank": 0},
    "tensor parallel, last": {"tp_size": 2, "tp_rank": 1},
    "expert parallel, first": {"ep_size": 2, "ep_rank": 0},
    "expert parallel, last": {"ep_size": 2, "ep_rank": 1},
}


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("run_bytes", [1, 40_000, RUN_BYTES])
@pytest.mark.parametrize("rank", RANKS)
def test_every_byte_lands_where_the_other_loader_puts_it(
    pack: Path, rank: str, run_bytes: int, on_device: bool
) -> None:
    inventory = read_inventory(pack)
    expected, found = make_loaders(inventory, **RANKS[rank]), make_loaders(inventory, **RANKS[rank])
    load_one_by_one(pack, expected)
    assert not same(expected, found)
    load_in_bulk(inventory, found, run_bytes=run_bytes, on_device=on_device)
    assert same(expected, found)
    for loader in found:
        loader.require_complete()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("rank", RANKS)
def test_every_byte_lands_on_a_gpu_too(pack: Path, rank: str) -> None:
    inventory = read_inventory(pack)
    device = torch.device("cuda", torch.cuda.current_device())
    expected = make_loaders(inventory, **RANKS[rank])
    load_one_by_one(pack, expected)
    with device:
        found = make_loaders(inventory, **RANKS[rank])
    parts = [part for loader in found for part in parts_of_layer(loader)]
    assert all(part.on_device for part in parts)
    runs = plan_runs(iter_pieces(parts, inventory.tensors), 40_000)
    BulkRead(parts, runs, lambda _: None, cuda_transfers(device)).run(4)
    for loader in found:
        loader.views = {key: view.cpu() for key, view in loader.views.items()}
    assert same(expected, found)


@pytest.mark.parametrize("readers", [1, 2, 8])
def test_any_number_of_readers_gives_the_same(pack: Path, readers: int) -> None:
    inventory = read_inventory(pack)
    expected, found = make_loaders(inventory), make_loaders(inventory)
    load_one_by_one(pack, expected)
    DelayedCopies.made = 0
    load_in_bulk(inventory, found, readers=readers, on_device=True)
    assert same(expected, found)
    assert DelayedCopies.made == readers


@pytest.mark.parametrize("codebook", ["3inst", "mul1"])
def test_other_codebooks(tmp_path: Path, codebook: str) -> None:
    recipe = PackRecipe(bits={1: 3}, stated={"quant_method": "exl3"}, codebook=codebook, marker_shape=(1,))
    pack = write_pack(tmp_path / "pack", recipe)
    inventory = read_inventory(pack)
    expected, found = make_loaders(inventory), make_loaders(inventory)
    load_one_by_one(pack, expected)
    load_in_bulk(inventory, found)
    assert same(expected, found)


def test_both_loaders_take_markers_that_are_stored_unsigned(pack: Path) -> None:
    edit_tensors(
        pack,
        lambda tensors: tensors.update(
            {name: array.view(np.uint32) for name, array in tensors.items() if name.endswith(".mcg")}
        ),
    )
    inventory = read_inventory(pack)
    inventory.require_sound()
    expected, found = make_loaders(inventory), make_loaders(inventory)
    load_one_by_one(pack, expected)
    load_in_bulk(inventory, found)
    assert same(expected, found)


def test_only_the_bytes_of_this_rank_are_counted(pack: Path) -> None:
    inventory = read_inventory(pack)
    stored = sum(tensor.num_bytes for tensor in inventory.tensors.values())
    assert load_in_bulk(inventory, make_loaders(inventory)) == stored
    assert load_in_bulk(inventory, make_loaders(inventory, ep_size=2, ep_rank=1)) == stored // 2


def test_reads_that_return_less_than_asked_for_go_on(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return whole(descriptor, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)

    inventory = read_inventory(pack)
    expected, found = make_loaders(inventory), make_loaders(inventory)
    load_one_by_one(pack, expected)
    monkeypatch.setattr(reader.os, "preadv", short)
    load_in_bulk(inventory, found)
    assert same(expected, found)


def test_tensors_loaded_in_bulk_are_doubled_when_they_come_again(pack: Path) -> None:
    inventory = read_inventory(pack)
    loaders = make_loaders(inventory)
    load_in_bulk(inventory, loaders)
    with pytest.raises(Glm53Error, match="was loaded twice") as caught:
        load_one_by_one(pack, loaders)
    assert caught.value.id == "tensor-doubled"
    with pytest.raises(Glm53Error, match="was loaded twice"):
        load_in_bulk(inventory, loaders)


NAME = "model.layers.1.mlp.experts.3.up_proj"


def overwrite(suffix: str, place: int, value: float) -> Callable[[Path], object]:
    def change(pack: Path) -> None:
        edit_tensors(pack, lambda tensors: tensors[f"{NAME}.{suffix}"].reshape(-1).__setitem__(place, value))

    return change


VALUES = {
    "NaN in suh": (overwrite("suh", 5, float("nan")), "scale-not-finite", f"{NAME}.suh"),
    "infinity in svh": (overwrite("svh", 0, float("inf")), "scale-not-finite", f"{NAME}.svh"),
    "wrong marker": (overwrite("mcg", 0, 7), "marker-value", f"{NAME}.mcg"),
}


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("damage", VALUES)
def test_value_that_may_not_be_is_refused_by_name(pack: Path, damage: str, on_device: bool) -> None:
    change, error_id, name = VALUES[damage]
    change(pack)
    inventory = read_inventory(pack)
    with pytest.raises(Glm53Error) as caught:
        load_in_bulk(inventory, make_loaders(inventory), on_device=on_device)
    assert caught.value.id == error_id
    assert name in caught.value.what


def test_pack_that_changed_since_its_headers_were_read_is_refused_by_name(pack: Path) -> None:
    inventory = read_inventory(pack)
    loaders = make_loaders(inventory)
    edit_tensors(pack, lambda tensors: tensors.pop(f"{NAME}.svh"))
    with pytest.raises(Glm53Error, match=f"{NAME}.svh") as caught:
        load_in_bulk(read_inventory(pack), loaders)
    assert caught.value.id == "tensor-missing"
    edit_tensors(pack, lambda tensors: tensors.update({f"{NAME}.svh": np.ones(128, np.float16)}))
    with pytest.raises(Glm53Error, match=f"{NAME}.svh") as caught:
        load_in_bulk(read_inventory(pack), loaders)
    assert caught.value.id == "tensor-shape"


def test_shard_that_is_cut_short_while_it_is_read_is_refused(pack: Path) -> None:
    inventory = read_inventory(pack)
    shard = inventory.shards[0]
    os.truncate(shard, shard.stat().st_size - 1000)
    with pytest.raises(Glm53Error, match=shard.name) as caught:
        load_in_bulk(inventory, make_loaders(inventory))
    assert caught.value.id == "shard-truncated"


def test_drive_that_fails_is_no_traceback(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(5, "Input/output error")

    inventory = read_inventory(pack)
    monkeypatch.setattr(reader.os, "preadv", fail)
    with pytest.raises(Glm53Error, match="Input/output error") as caught:
        load_in_bulk(inventory, make_loaders(inventory))
    assert caught.value.id == "file-unreadable"


def open_files() -> set[str]:
    """Files below a pack that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(link.readlink()))
    return {path for path in found if path.endswith(".safetensors")}


@pytest.mark.parametrize("sound", [True, False])
def test_no_file_stays_open(pack: Path, sound: bool) -> None:
    if not sound:
        overwrite("suh", 0, float("nan"))(pack)
    inventory = read_inventory(pack)
    with suppress(Glm53Error):
        load_in_bulk(inventory, make_loaders(inventory))
    assert open_files() == set()


@pytest.mark.parametrize("drop", [True, False])
def test_page_cache_is_left_alone_unless_asked(pack: Path, monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    advice: list[int] = []
    monkeypatch.setattr(bulk_read.os, "posix_fadvise", lambda *arguments: advice.append(arguments[-1]))
    inventory = read_inventory(pack)
    load_in_bulk(inventory, make_loaders(inventory), drop=drop)
    assert advice.count(os.POSIX_FADV_SEQUENTIAL) == len(inventory.shards)
    assert advice.count(os.POSIX_FADV_DONTNEED) == (len(inventory.shards) if drop else 0)


def pieces(*places: tuple[int, int], shard: str = "a") -> Iterator[Piece]:
    return (Piece(Path(shard), offset, num_bytes, 0, slot) for slot, (offset, num_bytes) in enumerate(places))


def spans(*runs: object) -> list[tuple[int, int, bool]]:
    return [(run.start, run.num_bytes, run.has_holes) for run in runs]  # type: ignore[attr-defined]


def test_neighbours_are_read_together_in_the_order_of_the_file() -> None:
    assert spans(*plan_runs(pieces((100, 50), (0, 100), (150, 4)))) == [(0, 154, False)]


def test_small_holes_are_read_and_large_ones_are_not() -> None:
    far = 10 + BRIDGE_BYTES
    assert spans(*plan_runs(pieces((0, 10), (far, 10)))) == [(0, far + 10, True)]
    assert spans(*plan_runs(pieces((0, 10), (far + 1, 10)))) == [(0, 10, False), (far + 1, 10, False)]


def test_runs_keep_to_their_size_but_for_single_larger_tensors() -> None:
    assert spans(*plan_runs(pieces((0, 60), (60, 40), (100, 1), (101, 500)), 100)) == [
        (0, 100, False),
        (100, 1, False),
        (101, 500, False),
    ]


def test_runs_keep_to_what_one_call_takes() -> None:
    runs = plan_runs(pieces(*((4 * number, 4) for number in range(MOST_PIECES + 1))))
    assert [len(run.pieces) for run in runs] == [MOST_PIECES, 1]


def test_shards_are_read_one_after_another() -> None:
    runs = plan_runs([*pieces((0, 8), shard="b"), *pieces((4, 8), shard="a")])
    assert [run.shard.name for run in runs] == ["a", "b"]
