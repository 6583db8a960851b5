"""Serve GLM-5.3-Flash from EXL3 trellis weights with vLLM."""

from typing import Final

__version__: Final = "0.1.0"
