"""Runs the preflight and prints its report; without typer and rich, which take longer to import than it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from glm53_exl3.pins import RuntimeName


def check_and_print(
    pack: str | Path | None,
    *,
    runtime: RuntimeName,
    fast: bool,
    as_json: bool,
    strict: bool,
    port: int | None,
    python: str | None,
    with_runtime: bool = True,
) -> int:
    """Print the report on standard output and give the exit code.

    Args:
        pack: folder of a pack.
        runtime: `fork` or `upstream`.
        fast: leave out what is slow.
        as_json: print JSON instead of lines.
        strict: warnings fail too.
        port: of the server, the default one when None.
        python: interpreter of the runtime, this one when None.
        with_runtime: check the runtime; without, host and pack alone.
    """
    from glm53_exl3.probes.preflight import DEFAULT_PORT, PreflightOptions, run_preflight

    options = PreflightOptions(
        runtime=runtime,
        fast=fast,
        pack=Path(pack).expanduser() if pack else None,
        port=port or DEFAULT_PORT,
        python=python or sys.executable,
        with_runtime=with_runtime,
    )
    if not fast and with_runtime:
        print("checking; importing vLLM takes a while", file=sys.stderr)  # noqa: T201
    report = run_preflight(options)
    if as_json:
        import json

        print(json.dumps(report.to_json(), indent=1))  # noqa: T201
    else:
        print(report.render())  # noqa: T201
    return int(report.exit_code(strict=strict))
