"""Where the console script starts: `preflight --fast` directly, everything else through the whole command line.

typer loads pydantic for every command that has a parameter, which alone takes longer than `preflight --fast` may.
So the plain forms of that one command are read here. Whatever is not understood, help and mistakes included, goes on
to typer, which answers for both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn


class _NotPlain(Exception):  # noqa: N818 - not an error: typer reads it instead
    """These arguments are not for here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _NotPlain(message)


def fast_parser() -> argparse.ArgumentParser:
    """The options of `preflight`, as cli/preflight.py declares them."""
    parser = _Parser(prog="glm53-exl3 preflight", add_help=False, allow_abbrev=False)
    parser.add_argument("pack", nargs="?")
    parser.add_argument("--pack", dest="pack_option")
    parser.add_argument("--runtime", choices=("fork", "upstream"), default="fork")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--port", type=int)
    parser.add_argument("--python")
    parser.add_argument("--no-runtime", action="store_true")
    return parser


def fast_preflight(arguments: Sequence[str]) -> int | None:
    """Exit code of a plain `preflight --fast`, None when the arguments are anything else."""
    if arguments[:1] != ["preflight"] or "--fast" not in arguments:
        return None
    try:
        given = fast_parser().parse_args(arguments[1:])
    except _NotPlain:
        return None
    if not given.fast or (given.pack and given.pack_option) or not (given.port is None or 1 <= given.port <= 65535):
        return None
    from glm53_exl3.cli.preflight_output import check_and_print

    return check_and_print(
        given.pack or given.pack_option,
        runtime=given.runtime,
        fast=True,
        as_json=given.as_json,
        strict=given.strict,
        port=given.port,
        python=given.python,
        with_runtime=not given.no_runtime,
    )


def main() -> None:
    """Run a command and exit as docs/errors.md says."""
    code = fast_preflight(sys.argv[1:])
    if code is None:
        from glm53_exl3.cli.main import main as whole_command_line

        whole_command_line()
    sys.exit(code)
