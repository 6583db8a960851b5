"""`glm53-exl3 inspect`: what a pack is, what it weighs and what can serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from glm53_exl3.cli.console import stderr, stdout

if TYPE_CHECKING:
    from rich.table import Table

    from glm53_exl3.pack.census import Census, LayerRange
    from glm53_exl3.pack.inventory import Inventory
    from glm53_exl3.pack.serving import Verdict

_TITLES: Final = {
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "dense_mlp": "dense MLP",
    "router": "routers",
    "kda": "attention: KDA",
    "mla": "attention: MLA",
    "indexer": "attention: indexer",
    "attention": "attention",
    "norms": "norms, mHC",
    "embeddings": "embeddings",
    "lm_head": "output head",
    "mtp": "MTP layers",
    "vision": "vision tower",
    "other": "other",
}


def inspect(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="Folder of the pack.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show architecture, bits of each layer, bytes by kind, bytes read a token, and what can serve a pack.

    Reads headers only. Of a damaged pack it shows what there is; `verify` says what is wrong.
    """
    from glm53_exl3.pack.census import census, layer_ranges
    from glm53_exl3.pack.inventory import read_inventory, without_collection
    from glm53_exl3.pack.serving import verdicts

    with without_collection():
        inventory = read_inventory(pack)
        counted, ranges, judged = census(inventory), layer_ranges(inventory), verdicts(inventory)
    if as_json:
        stdout.file.write(json.dumps(inspect_json(inventory, counted, ranges, judged), indent=1) + "\n")
    else:
        _print(inventory, counted, ranges, judged)
    if inventory.faults:
        stderr.print(f"\nwarning: the pack has {len(inventory.faults)} faults: glm53-exl3 verify {pack}", markup=False)


def inspect_json(
    inventory: Inventory, counted: Census, ranges: list[LayerRange], judged: tuple[Verdict, ...]
) -> dict[str, Any]:
    """What `--json` prints; all sizes in bytes."""
    shape = inventory.shape
    return {
        "directory": str(inventory.directory),
        "architecture": shape.architecture if shape else "",
        "layers": shape.num_layers if shape else None,
        "mtp_layers": list(shape.mtp_layers) if shape else [],
        "experts": shape.num_experts if shape else None,
        "experts_per_token": shape.experts_per_token if shape else None,
        "hidden_size": shape.hidden_size if shape else None,
        "expert_size": shape.expert_size if shape else None,
        "exl3_layers": [
            {
                "first": entry.first,
                "last": entry.last,
                "mtp": entry.is_mtp,
                "codebook": entry.codebook or None,
                "bits": dict(zip(("gate", "up", "down"), entry.bits, strict=True)) if entry.bits else None,
            }
            for entry in ranges
        ],
        "bytes_by_kind": dict(counted.bytes_by_kind),
        "active_bytes_by_kind": dict(counted.active_bytes_by_kind),
        "total_bytes": counted.total_bytes,
        "resident_bytes": counted.resident_bytes,
        "mtp_bytes": counted.mtp_bytes,
        "active_bytes_per_token": counted.active_bytes_per_token,
        "mtp_active_bytes": counted.mtp_active_bytes,
        "tensors": counted.num_tensors,
        "weights": counted.num_weights,
        "bits_per_weight": round(counted.bits_per_weight, 4),
        "exl3_bits_per_weight": round(counted.exl3_bits_per_weight, 4),
        "serving": [
            {"name": verdict.name, "kind": verdict.kind, "able": verdict.able, "reasons": list(verdict.reasons)}
            for verdict in judged
        ],
        "faults": len(inventory.faults),
    }


def _print(inventory: Inventory, counted: Census, ranges: list[LayerRange], judged: tuple[Verdict, ...]) -> None:
    shape = inventory.shape
    stdout.print(shape.architecture if shape else "no mixture of experts", markup=False)
    if shape:
        stdout.print(
            f"{shape.num_layers} layers, {len(shape.moe_layers)} of them with {shape.num_experts} routed experts of "
            f"{shape.hidden_size} x {shape.expert_size}, {shape.experts_per_token} a token; "
            f"{len(shape.mtp_layers)} MTP layers"
        )
    stdout.print(
        f"{counted.num_weights / 1e9:.1f} billion weights in {counted.num_tensors:,} tensors, "
        f"{counted.bits_per_weight:.2f} bits a weight; EXL3 weights {counted.exl3_bits_per_weight:.3f}\n"
    )
    stdout.print(_layer_table(ranges))
    stdout.print()
    stdout.print(_byte_table(counted))
    stdout.print()
    if counted.mtp_bytes:
        stdout.print(f"an MTP draft pass reads {counted.mtp_active_bytes / 1e9:.3f} GB\n")
    for verdict in judged:
        reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
        stdout.print(f"{verdict.kind} {verdict.name}: {'yes' if verdict.able else 'no'}{reasons}", markup=False)


def _layer_table(ranges: list[LayerRange]) -> Table:
    from rich.table import Table

    table = Table("layers", "gate", "up", "down", "codebook", box=None, pad_edge=False)
    for entry in ranges:
        name = str(entry.first) if entry.first == entry.last else f"{entry.first}-{entry.last}"
        bits = ["+".join(map(str, bits)) if isinstance(bits, tuple) else str(bits) for bits in entry.bits] or ["16"] * 3
        table.add_row(f"{name} (MTP)" if entry.is_mtp else name, *bits, entry.codebook or "not EXL3")
    return table


def _byte_table(counted: Census) -> Table:
    from rich.table import Table

    table = Table("kind", box=None, pad_edge=False)
    for title in ("GB", "share", "GB read a token"):
        table.add_column(title, justify="right")
    for kind, num_bytes in counted.bytes_by_kind.items():
        active = counted.active_bytes_by_kind.get(kind, 0)
        share = f"{num_bytes / counted.total_bytes:.1%}"
        table.add_row(_TITLES[kind], f"{num_bytes / 1e9:.3f}", share, f"{active / 1e9:.3f}")
    table.add_row("all", f"{counted.total_bytes / 1e9:.3f}", "", f"{counted.active_bytes_per_token / 1e9:.3f}")
    return table
