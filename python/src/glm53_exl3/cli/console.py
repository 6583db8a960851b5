"""Where the command line writes: data to standard output, everything else to standard error."""

from __future__ import annotations

from typing import Final

from rich.console import Console

stdout: Final = Console(highlight=False, soft_wrap=True)
stderr: Final = Console(stderr=True, highlight=False, soft_wrap=True)
