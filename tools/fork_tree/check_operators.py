"""Load the extensions of an unpacked wheel of vLLM without a GPU and look for operators in them.

    check_operators.py FOLDER NAMESPACE.OPERATOR...

An extension that misses a symbol of torch or a library fails here instead of on the first start. `cumem_allocator` is
left out: it asks for the driver's libcuda.so.1, which a builder does not have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

NEEDS_DRIVER = "cumem_allocator"


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command."""
    folder, *operators = arguments
    for path in sorted(Path(folder, "vllm").glob("*_C*.so")):
        if not path.name.startswith(NEEDS_DRIVER):
            torch.ops.load_library(str(path))
            print(f"loaded {path.name}")
    missing = [name for name in operators if not _is_there(*name.split("."))]
    for name in missing:
        print(f"error: operator-missing: no extension in {folder} registers {name}", file=sys.stderr)
    return 1 if missing else 0


def _is_there(namespace: str, operator: str) -> bool:
    return hasattr(getattr(torch.ops, namespace), operator)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
