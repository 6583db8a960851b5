"""`glm53-exl3 verify`: every fault of a pack, worst first, and what would mend them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from glm53_exl3.cli.console import stderr, stdout
from glm53_exl3.errors import ExitCode

if TYPE_CHECKING:
    from glm53_exl3.pack.findings import Finding
    from glm53_exl3.pack.verify import VerifyReport

#: Faults of one id and files that are named; the rest is counted. `--json` has all.
_MOST_NAMED: Final = 5


def verify(
    pack: Annotated[Path, typer.Argument(metavar="PACK", help="Folder of the pack.")],
    hashes: Annotated[
        bool, typer.Option("--hash", help="Also read every byte and compare sha256 with the manifest of `fetch`.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a pack without loading it: all faults, worst first, and what `fetch --repair` would do.

    Reads headers and codebook markers only, unless --hash is given. Exits with 1 when there is a fault.
    """
    from glm53_exl3.pack.verify import verify_pack

    with _hash_progress(hashes) as progress:
        report = verify_pack(pack, hashes, progress)
    if as_json:
        stdout.file.write(json.dumps(report_json(report), indent=1) + "\n")
    else:
        _print_report(report)
    if report.faults:
        raise typer.Exit(ExitCode.FIXABLE)


def report_json(report: VerifyReport) -> dict[str, Any]:
    """The report as `--json` prints it; all sizes in bytes."""
    return {
        "directory": str(report.directory),
        "sound": not report.faults,
        "faults": [_finding_json(finding) for finding in report.faults],
        "warnings": [_finding_json(finding) for finding in report.warnings],
        "checked": list(report.checked),
        "unchecked": list(report.unchecked),
        "repair": {
            "command": report.repair_command,
            "files": [{"path": file.path, "bytes": file.num_bytes, "damaged": file.damaged} for file in report.repair],
        },
        "counts": {
            "shards": report.num_shards,
            "tensors": report.num_tensors,
            "exl3_layers": report.num_layers,
            "bytes": report.num_bytes,
            "hashed_bytes": report.hashed_bytes,
        },
        "seconds": round(report.seconds, 3),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "level": finding.level.name.lower(),
        "count": len(finding.faults),
        "files": list(finding.files),
        "faults": [
            {"what": fault.what, "expected": fault.expected, "found": fault.found, "hint": fault.hint}
            for fault in finding.faults
        ],
    }


def _print_report(report: VerifyReport) -> None:
    lines: list[str] = []
    for word, findings in (("error", report.faults), ("warning", report.warnings)):
        for finding in findings:
            lines += _finding_lines(word, finding)
    if report.faults:
        lines += _repair_lines(report)
    lines += [f"checked: {text}" for text in report.checked]
    lines += [f"not checked: {text}" for text in report.unchecked]
    lines += ["", _summary(report)]
    stdout.print("\n".join(lines), markup=False)


def _finding_lines(word: str, finding: Finding) -> list[str]:
    first, *others = finding.faults
    lines = [f"{word}: {first.id}: {first.what}"]
    lines += [f"  expected: {first.expected}"] if first.expected else []
    lines += [f"  found: {first.found}"] if first.found else []
    lines += [f"  and: {fault.what}" for fault in others[: _MOST_NAMED - 1]]
    more = len(others) - _MOST_NAMED + 1
    lines += [f"  and {more:,} more of this kind"] if more > 0 else []
    lines += [f"  hint: {first.hint}"] if first.hint else []
    return [*lines, ""]


def _repair_lines(report: VerifyReport) -> list[str]:
    damaged = [file for file in report.repair if file.damaged]
    suspect = [file for file in report.repair if not file.damaged]
    lines = [f"to repair: {report.repair_command}"]
    if damaged:
        sizes = [file.num_bytes for file in damaged]
        known = sum(size for size in sizes if size is not None)
        bytes_text = f"{known:,} bytes" if None not in sizes else "of a size that only the Hub knows"
        lines.append(f"  downloads again {_files(len(damaged))}, {bytes_text}: {_listed([f.path for f in damaged])}")
    if suspect:
        paths = _listed([file.path for file in suspect])
        lines.append(f"  downloads {_files(len(suspect))} again if the Hub's differ: {paths}")
    if any(not finding.files for finding in report.faults):
        lines.append("  compares every other file with the Hub, as some faults name no file")
    return [*lines, ""]


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _summary(report: VerifyReport) -> str:
    verdict = "sound" if not report.faults else f"{report.num_faults:,} faults"
    warnings = sum(len(finding.faults) for finding in report.warnings)
    held = (
        f"{report.num_shards} shards, {report.num_tensors:,} tensors, {report.num_layers} layers of EXL3 experts, "
        f"{report.num_bytes:,} bytes"
    )
    return f"{verdict}, {warnings} warnings: {held}; {report.seconds:.2f} s"


@contextmanager
def _hash_progress(wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    if not wanted:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task("sha256", total=None)

        def advance(num_bytes: int, total: int) -> None:
            bar.update(task, advance=num_bytes, total=total)

        yield advance
