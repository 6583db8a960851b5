"""Registration with vLLM."""

from __future__ import annotations

from vllm.model_executor.layers.quantization import register_quantization_config

from glm53_exl3.engine.config import Exl3Config
from glm53_exl3.format.quantization_config import QUANT_METHOD

_registered = False


def register() -> None:
    """Make `exl3` a quantization method of this process. Calling it again does nothing."""
    global _registered  # noqa: PLW0603 - once a process is what idempotent means here
    if not _registered:
        register_quantization_config(QUANT_METHOD)(Exl3Config)
        _registered = True
