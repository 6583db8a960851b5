"""Receipts and comparisons as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from glm53_exl3.bench.answer import NO_FAILURE
from glm53_exl3.bench.compare import Difference, Verdict, equal_outputs
from glm53_exl3.bench.figures import TOTAL, Figures, Spread, level_figures
from glm53_exl3.bench.load import Level
from glm53_exl3.bench.receipt import Receipt

_MILLI: Final = 1000.0
#: Figure, heading, and what its values are multiplied by.
_COLUMNS: Final = (
    (TOTAL, "tokens/s in all", 1.0),
    ("tokens_per_second", "tokens/s each", 1.0),
    ("first_token_seconds", "first token ms", _MILLI),
    ("inter_token_seconds", "between tokens ms", _MILLI),
    ("longest_gap_seconds", "longest gap ms", _MILLI),
    ("prefill_tokens_per_second", "prefill tokens/s", 1.0),
)
_UNITS: Final = {name: (heading, scale) for name, heading, scale in _COLUMNS}
_NOTHING: Final = "-"


def number(value: float) -> str:
    """A figure with three digits, or all of its whole part."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread_text(found: Spread | None, scale: float = 1.0) -> str:
    """A median and its deciles, as `16.2 (15.9-16.4)`."""
    if found is None:
        return _NOTHING
    return f"{number(found.p50 * scale)} ({number(found.p10 * scale)}-{number(found.p90 * scale)})"


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, its columns to the right except the last."""
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(len(heading))]
    return [
        "  ".join([cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)] + [row[-1]]).rstrip()
        for row in (heading, *rows)
    ]


def level_lines(levels: Sequence[Level]) -> list[str]:
    """Figures of each level, then what failed."""
    heading = ["clients", *(title for _, title, _ in _COLUMNS), "requests"]
    rows = []
    failed: list[str] = []
    for level in levels:
        found = level_figures(level)
        cells = [spread_text(found.spreads[name], scale) for name, _, scale in _COLUMNS]
        rows.append([str(level.concurrency), *cells, _requests(found)])
        failed += _failures(level)
    return ["median (p10-p90)", *table(heading, rows), *failed]


def _requests(found: Figures) -> str:
    left = found.outcomes.get("left", 0)
    parts = [f"{found.num_answered} answered"]
    parts += [f"{left} left"] if left else []
    parts += [f"{found.num_failed} FAILED"] if found.num_failed else []
    return ", ".join(parts)


def _failures(level: Level) -> list[str]:
    lines: list[str] = []
    for outcome, count in level_figures(level).outcomes.items():
        if outcome not in NO_FAILURE:
            example = next(sample.detail for sample in level.samples if sample.outcome == outcome)
            lines.append(f"  {level.concurrency} clients: {count} x {outcome}: {example or 'no more is known'}")
    return lines


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A table of verdicts; medians over runs."""
    heading = ["clients", "figure", "first", "second", "ratio", "verdict"]
    rows = []
    for each in verdicts:
        title, scale = _UNITS.get(each.figure, (each.figure, 1.0))
        ratio = _NOTHING if each.ratio is None else f"{each.ratio:.3f}"
        verdict = f"{each.verdict}: {each.reason}" if each.reason else each.verdict
        first, second = spread_text(each.first, scale), spread_text(each.second, scale)
        rows.append([str(each.concurrency), title, first, second, ratio, verdict])
    return ["median (p10-p90) over runs", *table(heading, rows)]


def condition_lines(receipt: Receipt) -> list[str]:
    """What is measured, in a few lines."""
    server, pack, machine = (receipt.conditions[name] for name in ("server", "pack", "machine"))
    context = server["max_model_len_tokens"]
    kernel = (
        (server["environment"] or {}).get("GLM53_EXL3_KERNEL", "auto") if server["environment"] is not None else None
    )
    gpus = "GPUs not known" if machine["gpus"] is None else ", ".join(machine["gpus"]) or "no GPU"
    return [
        f"server   {server['model']}, context {_known(context)}, vLLM {_known(server['vllm_version'])}",
        f"flags    {_flags(server['flags'])}",
        f"kernel   GLM53_EXL3_KERNEL {_known(kernel)}",
        f"pack     {_known(pack['repository'])}, commit {_known(pack['commit'])}",
        f"machine  {_known(machine['cpu'])}, {_known(machine['cores'])} cores, {gpus}",
    ]


def _known(value: object) -> str:
    return "not known" if value is None else str(value)


def _flags(flags: dict[str, str] | None) -> str:
    if flags is None:
        return "not known"
    return " ".join(name if value == "true" else f"{name} {value}" for name, value in flags.items()) or "none"


def difference_lines(found: Sequence[Difference], unknown: Sequence[str]) -> list[str]:
    """What differs by permission, and what nobody knows."""
    lines = [f"allowed to differ: {each.key}: {each.first} and {each.second}" for each in found]
    return lines + ([f"not known of either, so not compared: {', '.join(unknown)}"] if unknown else [])


def output_lines(first: Receipt, second: Receipt) -> list[str]:
    """How many answers are the same; a faster server that says something else is no faster."""
    parts = [
        f"{same} of {compared} with {concurrency} clients"
        for concurrency, (same, compared) in sorted(equal_outputs(first, second).items())
        if compared
    ]
    return [f"equal answers: {', '.join(parts)}"] if parts else []
