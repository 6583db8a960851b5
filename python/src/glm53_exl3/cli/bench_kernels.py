"""`glm53-exl3 bench kernels`: time the backends on one layer of random experts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glm53_exl3.cli.console import stderr, stdout


def kernels(
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="glm-5.3-flash|small", help="Shape and batches; the former on a GPU, the latter on a CPU."
        ),
    ] = None,
    tokens: Annotated[str | None, typer.Option(metavar="N,N,...", help="Batch sizes.")] = None,
    bits: Annotated[str, typer.Option(metavar="K|K,K,K", help="Bits a weight, or those of gate, up and down.")] = "2",
    codebook: Annotated[str, typer.Option(metavar="mcg|mul1|3inst", help="Of all weights.")] = "mcg",
    hidden: Annotated[int | None, typer.Option(help="Width of the activations.")] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width between up and down.")] = None,
    experts: Annotated[int | None, typer.Option(help="Experts of the layer.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Experts a token.")] = None,
    limit: Annotated[float, typer.Option(help="SwiGLU limit, 0 for none.")] = 10.0,
    backend: Annotated[
        list[str] | None, typer.Option(help="Backend to time, several times for several; all that run here by default.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Replays that count, at most; slow ones are repeated less.")] = 30,
    routing: Annotated[
        str,
        typer.Option(
            metavar="uniform|skewed|same",
            help="Experts alike, the r-th in proportion to 1/r, or the same for all tokens.",
        ),
    ] = "uniform",
    seed: Annotated[int, typer.Option(help="Of weights, activations and routing.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the receipt here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt instead of a table.")] = False,
) -> None:
    """Time one layer of random experts by each backend, and check what they compute.

    Beside two floors: the bytes of the weights at the bandwidth of a copy, and dense products in bf16. Exits with 1
    when a backend computes something else than the reference.
    """
    from glm53_exl3.bench_kernels.command import run_command
    from glm53_exl3.bench_kernels.settings import Options

    run_command(
        Options(
            profile=profile,
            tokens=tokens,
            bits=bits,
            codebook=codebook,
            hidden=hidden,
            intermediate=intermediate,
            experts=experts,
            top_k=top_k,
            limit=limit,
            backend=tuple(backend or ()),
            repeat=repeat,
            routing=routing,
            seed=seed,
        ),
        out=out,
        as_json=as_json,
        write=lambda line: stdout.print(line, markup=False),
        note=lambda line: stderr.print(line, markup=False),
    )
