"""`glm53-exl3 preflight`: everything that is known to go wrong, named before the weights are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def preflight(
    pack: Annotated[
        Path | None, typer.Argument(metavar="[PACK]", help="Folder of a pack; without one no pack is checked.")
    ] = None,
    pack_option: Annotated[Path | None, typer.Option("--pack", help="The same, as an option.")] = None,
    runtime: Annotated[Literal["fork", "upstream"], typer.Option(help="Which runtime is expected.")] = "fork",
    fast: Annotated[
        bool, typer.Option("--fast", help="Without torch, pack headers and the Hub: a third of a second.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: docs/preflight.schema.json.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings fail too.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the server.", min=1, max=65535)] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter of the runtime; this one by default.")
    ] = None,
    no_runtime: Annotated[
        bool, typer.Option("--no-runtime", help="Host and pack alone: the runtime is elsewhere or comes later.")
    ] = False,
) -> None:
    """Check host, runtime and pack, and say what to do about each failure.

    Exits with 1 when anything failed. Failures come first, then warnings; the last line says what was not checked.
    """
    from glm53_exl3.cli.preflight_output import check_and_print

    if pack is not None and pack_option is not None:
        raise typer.BadParameter("give the pack once, as PACK or with --pack")
    raise typer.Exit(
        check_and_print(
            pack or pack_option,
            runtime=runtime,
            fast=fast,
            as_json=as_json,
            strict=strict,
            port=port,
            python=python,
            with_runtime=not no_runtime,
        )
    )
