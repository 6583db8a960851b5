"""`glm53-exl3 quantize`: make an EXL3 pack of a small BF16 checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.errors import FormatError
from glm53_exl3.format.codebooks import require_codebook
from glm53_exl3.quantize.plan import QuantizePlan, plan_quantization


def quantize(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of the unquantized checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Folder of the pack; it must not exist.")],
    bits: Annotated[int, typer.Option(help="Bits a weight of the routed experts, 1 to 8.")],
    layer_bits: Annotated[str, typer.Option(help="Other bits for some layers, as 3=4,5=3.")] = "",
    codebook: Annotated[str, typer.Option(help="mcg, mul1 or 3inst.")] = "mcg",
    seed: Annotated[int, typer.Option(help="Seed of the random signs.")] = 0,
) -> None:
    """Quantize the routed experts of a small checkpoint, on the CPU and without calibration.

    About 10,000 weights a second at 2 bits: right for demos and tests. Packs of large models are made with
    exllamav3's converter on a GPU, which also calibrates.
    """
    plan = plan_quantization(source, bits, parse_layer_bits(layer_bits), require_codebook(codebook))
    _write(plan, target, seed)
    stdout.print(str(target), markup=False)


def parse_layer_bits(text: str) -> dict[int, int]:
    """Bits by layer index of a list such as `3=4,5=3`.

    Raises:
        FormatError: `layer-bits`.
    """
    result: dict[int, int] = {}
    for entry in filter(None, text.split(",")):
        layer, _, bits = (part.strip() for part in entry.partition("="))
        if not (layer.isdecimal() and bits.isdecimal()) or int(layer) in result:
            raise FormatError(
                "layer-bits",
                f"--layer-bits has the entry {entry!r}",
                expected="LAYER=BITS, each layer once, for example 3=4,5=3",
                hint="glm53-exl3 quantize SRC DST --bits 2 --layer-bits 3=4,5=3",
            )
        result[int(layer)] = int(bits)
    return result


def _write(plan: QuantizePlan, target: Path, seed: int) -> None:
    from glm53_exl3.quantize.pack import write_pack

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr) as progress:
        task = progress.add_task("quantizing", total=len(plan.experts))
        write_pack(plan, target, seed=seed, progress=lambda name, num_weights: progress.advance(task))
