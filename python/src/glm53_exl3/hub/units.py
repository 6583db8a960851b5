"""Bytes and durations as people read them, and paths as a shell does."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def in_bytes(num_bytes: float) -> str:
    """A size in binary units, as `91.0 GiB`; below 1 KiB without a fraction."""
    value, unit = float(num_bytes), 0
    # 1023.95 would be printed as 1024.0 of its unit.
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def in_time(seconds: float) -> str:
    """A duration as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def quote(path: Path | str) -> str:
    """A path to paste into a command."""
    return shlex.quote(str(path))
