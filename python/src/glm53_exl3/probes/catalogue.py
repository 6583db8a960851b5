"""The checks that `--fast` or a run without a pack leaves out, by name.

They stand apart from the code that makes them, so that a fast run can name them without importing it.
"""

from __future__ import annotations

from typing import Final

from glm53_exl3.probes.result import Check

CLOCK: Final = Check("clock", "clock", "host")
TOKEN: Final = Check("hub-token", "token of the Hub", "host")

HEADERS: Final = Check("python-headers", "Python headers", "runtime")
LIBCUDA: Final = Check("driver-library", "driver library", "runtime")
TORCH: Final = Check("torch", "torch", "runtime")
CUDA: Final = Check("torch-cuda", "torch on the GPU", "runtime")
FLASHINFER: Final = Check("flashinfer", "FlashInfer", "runtime")
CUBIN: Final = Check("flashinfer-cubin", "FlashInfer's binary packages", "runtime")
VLLM: Final = Check("vllm", "vLLM", "runtime")
MODEL: Final = Check("glm5next", "GLM-5.3-Flash in vLLM", "runtime")

EXL3: Final = Check("exl3-plugin", "exl3 in vLLM", "runtime")
RIVALS: Final = Check("exl3-rivals", "other EXL3 plugins", "runtime")
EXTENSION: Final = Check("moe-extension", "exllamav3's MoE kernels", "runtime")
NATIVE: Final = Check("native-kernels", "this project's MoE kernels", "runtime")
KPOOL: Final = Check("kpool-tail", "K-pool tail fix", "runtime")

PRESENT: Final = Check("pack-present", "pack", "pack")
CONFIG: Final = Check("pack-config", "config.json", "pack")
STAMP: Final = Check("pack-stamp", "quantization stamp", "pack")
SIZE: Final = Check("pack-size", "shards", "pack")
REVISION: Final = Check("pack-revision", "revision", "pack")
TEMPLATE: Final = Check("pack-chat-template", "chat template", "pack")
THINKING: Final = Check("pack-thinking", "thinking on and off", "pack")
SAMPLING: Final = Check("pack-sampling", "sampling", "pack")
INVENTORY: Final = Check("pack-inventory", "tensors", "pack")

#: Made of the interpreter of the runtime and of the Hub: left out by a fast run.
SLOW: Final = (
    CLOCK,
    TOKEN,
    HEADERS,
    LIBCUDA,
    TORCH,
    CUDA,
    FLASHINFER,
    CUBIN,
    VLLM,
    MODEL,
    EXL3,
    RIVALS,
    EXTENSION,
    NATIVE,
    KPOOL,
)
#: Made of a pack.
PACK: Final = (PRESENT, CONFIG, STAMP, SIZE, REVISION, TEMPLATE, THINKING, SAMPLING, INVENTORY)
