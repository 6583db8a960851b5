"""Start `in_vllm.py` on a pack and read what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from glm53_exl3.demo.canary import Answer

SCRIPT = Path(__file__).with_name("in_vllm.py")
MARK = '{"run": '


def run_in_vllm(pack: Path, *arguments: str) -> Iterator[tuple[str, list[Answer]]]:
    """Name and answers of each run, as they come.

    Raises:
        SystemExit: the script failed; its last lines are shown.
    """
    command = [sys.executable, str(SCRIPT), str(pack), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        tail: list[str] = []
        for line in process.stdout:
            if line.startswith(MARK):
                run = json.loads(line)
                yield run["run"], [Answer(**answer) for answer in run["answers"]]
            else:
                tail = [*tail[-20:], line]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(tail)}")
