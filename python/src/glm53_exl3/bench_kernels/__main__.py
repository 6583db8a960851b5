"""`python -m glm53_exl3.bench_kernels`: the command for machines with torch but without typer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, get_args

from glm53_exl3.bench_kernels.settings import Options, Profile, Routing
from glm53_exl3.errors import Glm53Error
from glm53_exl3.format.codebooks import Codebook


def parser() -> argparse.ArgumentParser:
    """The options of `bench kernels`, as cli/bench_kernels.py declares them."""
    default = Options()
    found = argparse.ArgumentParser(prog="python -m glm53_exl3.bench_kernels", allow_abbrev=False)
    found.add_argument("--profile", metavar="|".join(get_args(Profile)))
    found.add_argument("--tokens", metavar="N,N,...")
    found.add_argument("--bits", metavar="K or K,K,K", default=default.bits)
    found.add_argument("--codebook", metavar="|".join(get_args(Codebook)), default=default.codebook)
    for name in ("--hidden", "--intermediate", "--experts", "--top-k"):
        found.add_argument(name, type=int)
    found.add_argument("--limit", type=float, default=default.limit)
    found.add_argument("--backend", action="append", default=[])
    found.add_argument("--repeat", type=int, default=default.repeat)
    found.add_argument("--routing", metavar="|".join(get_args(Routing)), default=default.routing)
    found.add_argument("--seed", type=int, default=default.seed)
    found.add_argument("--out", type=Path)
    found.add_argument("--json", action="store_true", dest="as_json")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code as docs/errors.md says."""
    given = vars(parser().parse_args(arguments))
    out, as_json, backend = given.pop("out"), given.pop("as_json"), tuple(given.pop("backend"))
    from glm53_exl3.bench_kernels.command import run_command

    try:
        run_command(
            Options(**given, backend=backend),
            out=out,
            as_json=as_json,
            write=lambda line: _print(line, sys.stdout),
            note=lambda line: _print(line, sys.stderr),
        )
    except Glm53Error as error:
        _print(error.render(), sys.stderr)
        return error.exit_code
    return 0


def _print(line: str, stream: TextIO) -> None:
    stream.write(line + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
