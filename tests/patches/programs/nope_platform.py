"""What vLLM's CUDA platform decides for a compute capability, on a machine without CUDA."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

CAPABILITIES = ((8, 9), (9, 0), (10, 0), (12, 0), (12, 1))


def _register_no_operators() -> None:
    """The compiled operators are in no source tree; the platform only wants them imported."""
    import vllm

    name = "vllm._C_stable_libtorch"
    if name not in sys.modules:
        sys.modules[name] = vars(vllm)["_C_stable_libtorch"] = types.ModuleType(name)


def own() -> types.ModuleType:
    _register_no_operators()
    import vllm.platforms.cuda

    return vllm.platforms.cuda


def from_file(path: str) -> types.ModuleType:
    """Another text of vllm/platforms/cuda.py, in the place of the tree's own."""
    _register_no_operators()
    import vllm.platforms  # noqa: F401  # The parent of the name below.

    spec = importlib.util.spec_from_file_location(f"vllm.platforms.{Path(path).parents[2].name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def decisions(cuda: types.ModuleType) -> dict[str, Any]:
    """By capability: launch with programmatic dependency, and to what a block of pools of 4 tokens is aligned."""
    found = {}
    kept = torch.cuda.current_device, torch.cuda.get_device_capability
    for capability in CAPABILITIES:
        torch.cuda.current_device = lambda: 0
        torch.cuda.get_device_capability = lambda device=None, now=capability: now
        found["{}.{}".format(*capability)] = _decided(cuda, capability)
    torch.cuda.current_device, torch.cuda.get_device_capability = kept
    return found


def _decided(cuda: types.ModuleType, capability: tuple[int, int]) -> dict[str, Any]:
    from vllm.platforms.interface import DeviceCapability

    class Platform(cuda.CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*capability)

    text = types.SimpleNamespace(index_kpool=4)
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(hf_text_config=text))
    align = getattr(Platform, "_get_indexer_block_alignment", None)
    return {"pdl": Platform.is_arch_support_pdl(), "alignment": align(config) if align else None}


def pages() -> dict[str, int]:
    """Rows of the pages into which a block is split for a layer of the SM120 backend."""
    from vllm.v1.attention.backends.mla.flashinfer_mla_sparse import FlashInferMLASparseSM120Backend
    from vllm.v1.worker.utils import select_common_block_size

    backends = [FlashInferMLASparseSM120Backend]
    return {str(block): select_common_block_size(block, backends) for block in (64, 256, 1152, 2304)}


if __name__ == "__main__":
    files = json.loads(sys.argv[2])["files"]
    Path(sys.argv[1]).write_text(json.dumps({name: decisions(from_file(path)) for name, path in files.items()}))
