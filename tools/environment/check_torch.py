"""Refuse an environment whose torch is not the pinned build.

    check_torch.py SITE_PACKAGES --torch 2.13.0 --cuda 13.0

The wheels of one version exist for the CPU and for several releases of CUDA, under the same name. Read from the file in
which torch states its build, so a torch for another machine can be checked too. Exits with 1 and a sentence.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site_packages", type=Path)
    parser.add_argument("--torch", required=True, help="version without local part")
    parser.add_argument("--cuda", required=True, help="release of CUDA, as 13.0")
    options = parser.parse_args(arguments)
    file = options.site_packages / "torch" / "version.py"
    if not file.is_file():
        print(f"error: torch-missing: {file} is not there", file=sys.stderr)
        return 1
    version, cuda = stated_build(file.read_text(encoding="utf-8"))
    expected = f"{options.torch}+cu{options.cuda.replace('.', '')}"
    if (version, cuda) == (expected, options.cuda):
        return 0
    print(
        "error: torch-build: this torch is not the one that everything here was compiled for\n"
        f"  expected: {expected}, CUDA {options.cuda}\n  found:    {version}, CUDA {cuda or 'none'}\n\n"
        f"hint: pin torch {options.torch} for CUDA {options.cuda} in pins.json, then run tools/locks/refresh.py",
        file=sys.stderr,
    )
    return 1


def stated_build(text: str) -> tuple[str, str]:
    """Version with its local part, and release of CUDA (empty without), of torch/version.py."""
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]+)? = '([^']+)'", text, re.MULTILINE)
    return version[1] if version else "unknown", cuda[1] if cuda else ""


if __name__ == "__main__":
    sys.exit(main())
