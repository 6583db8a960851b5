"""Sizes and versions as text and back."""

from __future__ import annotations

import re
from typing import Final

GIB: Final = 2**30


def gib(num_bytes: int) -> str:
    """Bytes as GiB with one decimal."""
    return f"{num_bytes / GIB:.1f} GiB"


def version_numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: `0.32.0+cpu` gives (0, 32, 0); empty when there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
