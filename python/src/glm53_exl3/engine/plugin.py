"""Registration with vLLM."""

from __future__ import annotations

from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.model_loader import register_model_loader

from glm53_exl3.engine.bulk_loader import LOAD_FORMAT, BulkModelLoader
from glm53_exl3.engine.config import Exl3Config
from glm53_exl3.format.quantization_config import QUANT_METHOD

_registered = False


def register() -> None:
    """Make `exl3` a quantization method and `glm53_exl3` a load format, once for this process."""
    global _registered  # noqa: PLW0603 - once a process is what idempotent means here
    if not _registered:
        register_quantization_config(QUANT_METHOD)(Exl3Config)
        register_model_loader(LOAD_FORMAT)(BulkModelLoader)
        _registered = True
