"""`glm53-exl3`: the commands, and the one place where errors become exit codes."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated

import typer

from glm53_exl3 import __version__
from glm53_exl3.cli import demo, quantize
from glm53_exl3.cli.console import stderr
from glm53_exl3.errors import ExitCode, Glm53Error

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command("demo")(demo.demo)
app.command("quantize")(quantize.quantize)

_INTERRUPTED = 130


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glm53-exl3 {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve GLM-5.3-Flash from EXL3 trellis weights with vLLM."""


def main() -> None:
    """Run a command and exit with one of `ExitCode`, or 130 after Ctrl-C."""
    try:
        app()
    except Glm53Error as error:
        stderr.print(error.render(), markup=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception:
        traceback.print_exc()
        stderr.print("\nerror: internal: this is a bug of glm53-exl3\n\nhint: report it with the lines above")
        sys.exit(ExitCode.BUG)
