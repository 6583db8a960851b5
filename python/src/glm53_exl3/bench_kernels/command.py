"""The command behind `glm53-exl3 bench kernels` and `python -m glm53_exl3.bench_kernels`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from glm53_exl3.bench.receipt import require_writable, write_receipt
from glm53_exl3.bench_kernels.backends import choose, known_backends
from glm53_exl3.bench_kernels.measure import measure
from glm53_exl3.bench_kernels.report import head_lines, table_lines
from glm53_exl3.bench_kernels.result import require_right
from glm53_exl3.bench_kernels.settings import Options, read_options


def run_command(
    options: Options,
    *,
    out: Path | None,
    as_json: bool,
    write: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Measure, print, write the receipt, and judge.

    Args:
        options: as typed.
        out: file of the receipt.
        as_json: the receipt instead of a table.
        write: gets each line of the result.
        note: gets each line of progress.

    Raises:
        BenchError: `kernel-bench-option`, `kernel-bench-backend`, `receipt-exists`, `receipt-write`; `kernel-wrong`,
            after the table and the receipt.
        KernelError: of a backend that was named and cannot run.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    settings = read_options(options, "glm-5.3-flash" if device.type == "cuda" else "small")
    backends = choose(settings.backends, known_backends(device), device.type)
    if out is not None:
        require_writable(out)
    result = measure(settings, device, backends, note)
    if out is not None:
        write_receipt(out, result)
    if as_json:
        write(json.dumps(result.to_json(), indent=1))
    else:
        for line in (*head_lines(result), "", *table_lines(result)):
            write(line)
    require_right(result)
