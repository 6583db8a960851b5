"""`glm53-exl3`: the commands, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from glm53_exl3 import __version__
from glm53_exl3.errors import ExitCode, Glm53Error

#: The commands; `cli/NAME.py` has a function of that name, or an `app` with commands of its own.
COMMANDS: Final = ("bench", "demo", "fetch", "inspect", "plan", "preflight", "quantize", "serve", "verify")
_SIGNALLED = 128
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glm53-exl3 {__version__}")
        raise typer.Exit


def application(named: str = "") -> typer.Typer:
    """The command line.

    Args:
        named: the command that is wanted; no other is imported then. All of them for any other text.
    """
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.callback()(options)
    for name in [named] if named in COMMANDS else COMMANDS:
        module = importlib.import_module(f"glm53_exl3.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve GLM-5.3-Flash from EXL3 trellis weights with vLLM."""


def main() -> None:
    """Run a command and exit with one of `ExitCode`, or with 128 and the signal's number after one that ends it."""
    for number in _ENDING:
        # nohup starts a command with hangups ignored: it is to outlive its terminal.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_on_signal)
    try:
        application(next(iter(sys.argv[1:]), ""))()
    except Glm53Error as error:
        from glm53_exl3.cli.console import stderr

        stderr.print(error.render(), markup=False)
        sys.exit(error.exit_code)
    except Exception:
        traceback.print_exc()
        sys.stderr.write("\nerror: internal: this is a bug of glm53-exl3\n\nhint: report it with the lines above\n")
        sys.exit(ExitCode.BUG)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind, so that a server that runs is stopped on the way out; typer would turn Ctrl-C into exit code 1."""
    for further in _ENDING:
        # Stopping a server takes seconds; an impatient second Ctrl-C must not leave it behind.
        signal.signal(further, signal.SIG_IGN)
    sys.exit(_SIGNALLED + number)
