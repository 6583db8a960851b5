"""Why a server cannot be measured, or two measurements not be compared."""

from __future__ import annotations

from glm53_exl3.errors import Glm53Error


class BenchError(Glm53Error):
    """A benchmark cannot be run, read or compared as asked."""
