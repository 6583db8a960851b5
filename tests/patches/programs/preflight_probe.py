"""What preflight finds of the K-pool tail in a tree of vLLM."""

from __future__ import annotations

import interpreted  # isort: skip

import importlib.util
from typing import Any

interpreted.bare("vllm.models.glm5next")


def measure(probe: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("kpool_tail", probe)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.examine()
    return found


if __name__ == "__main__":
    interpreted.main(measure)
