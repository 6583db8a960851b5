"""`glm53-exl3 bench`: measure a running server or the kernels, compare two measurements."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from glm53_exl3.cli.bench_kernels import kernels
from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from glm53_exl3.bench.load import Level, LevelPlan

app = typer.Typer(no_args_is_help=True, help="Measure a running server or the kernels; compare two measurements.")
app.command("kernels")(kernels)
_MOST_CLIENTS: Final = 1024
_PROMPT_TOKENS: Final = 512


def _concurrency(text: str) -> tuple[int, ...]:
    try:
        levels = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1,2,4") from None
    if len(set(levels)) != len(levels) or not all(1 <= level <= _MOST_CLIENTS for level in levels):
        raise typer.BadParameter(f"each number has to be from 1 to {_MOST_CLIENTS}, and there once")
    return levels


@app.command("serve")
def serve(
    url: Annotated[str, typer.Option(help="Base URL of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Name to ask for; by default the first that it serves.")] = None,
    concurrency: Annotated[str, typer.Option(metavar="N,N,...", help="Clients at the same time.")] = "1,2,4,8,16,32",
    requests: Annotated[
        int | None, typer.Option(help="Requests of each level, at least; by default one a client and run.", min=1)
    ] = None,
    runs: Annotated[int, typer.Option(help="Runs of each level that count.", min=1)] = 7,
    warm_up: Annotated[int, typer.Option(help="Runs of each level before them.", min=0)] = 2,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="Tokens of generated prompts; 512 by default.", min=1)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer, at most.", min=1)] = 128,
    questions: Annotated[
        Path | None, typer.Option(help="Ask the lines of this file instead; answers end where they end.")
    ] = None,
    extra_body: Annotated[
        str, typer.Option(metavar="JSON", help="Further keys of each request, as chat_template_kwargs.")
    ] = "{}",
    leave: Annotated[
        float, typer.Option(help="Percent of the clients that leave in the middle of an answer.", min=0, max=100)
    ] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=1)] = 600,
    seed: Annotated[int, typer.Option(help="Of generated prompts, and of who leaves.")] = 0,
    pack: Annotated[
        Path | None, typer.Option(help="Folder of the pack; by default the one in the server's command line.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the API key; by default VLLM_API_KEY.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the receipt here, for bench compare.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipt instead of a table.")] = False,
) -> None:
    """Measure a server: time to first token, tokens a second and failures, by number of clients.

    Figures are medians with the tenth and the ninetieth percentile. The receipt says under which conditions they
    were measured.
    """
    from glm53_exl3.bench.endpoint import parse_endpoint
    from glm53_exl3.bench.measure import Bench, Load
    from glm53_exl3.bench.prompts import read_extra_body, read_questions
    from glm53_exl3.bench.receipt import require_writable, write_receipt
    from glm53_exl3.bench.report import condition_lines, level_lines
    from glm53_exl3.serve.api_key import read_api_key

    if questions is not None and prompt_tokens is not None:
        raise typer.BadParameter("--prompt-tokens is for generated prompts; leave it out with --questions")
    load = Load(
        concurrency=_concurrency(concurrency),
        prompt_tokens=prompt_tokens or _PROMPT_TOKENS,
        max_tokens=max_tokens,
        questions=read_questions(questions) if questions else None,
        runs=runs,
        warm_up_runs=warm_up,
        requests=requests,
        seed=seed,
        leave_share=leave / 100,
        timeout_seconds=timeout,
        extra_body=read_extra_body(extra_body),
    )
    if out is not None:
        require_writable(out)
    endpoint = parse_endpoint(url, read_api_key(api_key_file, os.environ))
    bench = Bench(endpoint, load, model=model, pack=pack)
    for doubt in bench.doubts:
        stderr.print(f"warning: {doubt}", markup=False)
    receipt = bench.run(_show_run, _show_level)
    if out is not None:
        write_receipt(out, receipt)
    if as_json:
        stdout.print(json.dumps(receipt.to_json(), indent=1), markup=False)
    else:
        for line in (*condition_lines(receipt), "", *level_lines(receipt.levels)):
            stdout.print(line, markup=False)
    _require_answers(receipt.levels)


def _show_run(plan: LevelPlan, run: int) -> None:
    which = f"run {run + 1} of {plan.runs}" if run >= 0 else f"warm-up {run + plan.warm_up_runs + 1}"
    stderr.print(f"{plan.concurrency} clients, {plan.requests_per_run} requests: {which}", markup=False)


def _show_level(level: Level) -> None:
    from glm53_exl3.bench.figures import TOTAL, level_figures
    from glm53_exl3.bench.report import spread_text

    total = spread_text(level_figures(level).spreads[TOTAL])
    stderr.print(f"{level.concurrency} clients: {total} tokens/s in all", markup=False)


def _require_answers(levels: Sequence[Level]) -> None:
    from glm53_exl3.bench.errors import BenchError
    from glm53_exl3.bench.figures import level_figures

    silent = [str(level.concurrency) for level in levels if level_figures(level).num_failed == len(level.samples)]
    if silent:
        raise BenchError(
            "all-requests-failed",
            f"no request was answered with this many clients: {', '.join(silent)}",
            hint="the lines above say why; the log of the server may say more",
        )


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="Receipt to compare with.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="Receipt to judge.")],
    threshold: Annotated[float, typer.Option(help="Percent by which the second may be worse.", min=0, max=100)] = 5.0,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Condition that is meant to differ, as server.flags.--speculative-config."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Only PASS everywhere exits with 0.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Compare two receipts of bench serve, when they were measured under the same conditions.

    Exits with 1 when a figure is a FAIL, or when nothing was compared.
    """
    from glm53_exl3.bench.compare import comparison_json, judge, require_comparable, unknown_conditions
    from glm53_exl3.bench.receipt import read_receipt
    from glm53_exl3.bench.report import difference_lines, output_lines, verdict_lines

    one, two = read_receipt(first), read_receipt(second)
    differing = require_comparable(one, two, allow or [])
    unknown = unknown_conditions(one, two)
    verdicts = judge(one, two, threshold)
    if as_json:
        document = comparison_json(one, two, differing, unknown, verdicts, threshold)
        stdout.print(json.dumps(document, indent=1), markup=False)
    else:
        for line in (*difference_lines(differing, unknown), *verdict_lines(verdicts), *output_lines(one, two)):
            stdout.print(line, markup=False)
    names = {verdict.verdict for verdict in verdicts}
    if "FAIL" in names or names <= {"NOT TESTED"} or (strict and names != {"PASS"}):
        raise typer.Exit(ExitCode.FIXABLE)
