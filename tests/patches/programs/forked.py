"""Run programs one after another in forks of a process that has vLLM imported, which takes longer than they do.

Reads a line of JSON for each (program, answer file, log file, arguments), writes a line with its exit code.
"""

from __future__ import annotations

import interpreted  # isort: skip

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

#: What most programs import, as far as the tree has it.
COMMON = (
    "vllm.config",
    "vllm.v1.attention.backends.mla.indexer",
    "vllm.v1.worker.gpu.model_states.mamba_hybrid",
    "vllm.models.glm5next",
)


def child(program: str, answer: str, log: str, arguments: str) -> int:
    with Path(log).open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        sys.argv = [program, answer, arguments]
        try:
            runpy.run_path(program, run_name="__main__")
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            return 1
    return 0


def main() -> None:
    for name in COMMON:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    # Whatever a library prints must not be taken for an exit code.
    os.dup2(2, 1)
    for line in sys.stdin:
        if (process := os.fork()) == 0:
            os._exit(child(**json.loads(line)))
        _, status = os.waitpid(process, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


if __name__ == "__main__":
    assert interpreted
    main()
