"""Ask the real vLLM, in this process, what a pack answers: as it is, or with each damage.

    python tools/demo/in_vllm.py PACK [--dtype bfloat16] [--batches 44 7] [--damages]

Prints one JSON object a run: {"run": name, "answers": [...]}. A process serves one pack; vLLM cannot unload.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

# Both are read when vLLM is imported. One process, so that the kernels can be reached from here.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
if "--damages" in sys.argv:
    # The packed tensors are kept, so that each damage starts from them.
    os.environ["GLM53_EXL3_DECODE"] = "call"

import torch
from vllm import LLM, SamplingParams

from damage import damages, kernel
from glm53_exl3.demo.canary import Answer
from glm53_exl3.demo.faq import MAX_MODEL_LEN_TOKENS, load_faq
from glm53_exl3.engine import custom_op
from glm53_exl3.kernels.interface import PackedLayer
from glm53_exl3.kernels.reference import ReferenceKernel


def start(pack: Path, dtype: str) -> LLM:
    """An engine in this process."""
    return LLM(
        str(pack),
        dtype=dtype,
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN_TOKENS,
        max_num_seqs=64,
        kv_cache_memory_bytes=64 * 2**20,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        disable_log_stats=True,
    )


def ask(engine: LLM, batch: int | None = None) -> list[Answer]:
    """Greedy answers to all questions, `batch` at a time or all at once."""
    entries = load_faq()
    answers: list[Answer] = []
    for first in range(0, len(entries), batch or len(entries)):
        some = entries[first : first + (batch or len(entries))]
        chats = [[{"role": "user", "content": entry.question}] for entry in some]
        outputs = engine.chat(chats, SamplingParams(temperature=0, logprobs=0, max_tokens=96), use_tqdm=False)
        for entry, output in zip(some, outputs, strict=True):
            best = output.outputs[0]
            answers.append(Answer(entry.question, best.text, float(best.cumulative_logprob or 0.0)))
    return answers


def holders() -> Mapping[str, custom_op.KernelHolder]:
    """Kernel holders of the engine's layers, in order."""
    return dict(sorted(custom_op._holders.items()))


def show(run: str, answers: list[Answer]) -> None:
    """One line of output."""
    print(json.dumps({"run": run, "answers": [asdict(answer) for answer in answers]}), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="*", default=[44])
    parser.add_argument("--damages", action="store_true")
    options = parser.parse_args()
    engine = start(options.pack, options.dtype)
    for batch in options.batches:
        show(f"as it is, {batch} at a time", ask(engine, batch))
    if not options.damages:
        return
    packed: list[PackedLayer] = []
    for holder in holders().values():
        assert isinstance(holder.kernel, ReferenceKernel)
        assert holder.kernel._packed is not None
        packed.append(holder.kernel._packed)
    for name, damage in damages(len(packed), packed[0].gate.num_experts):
        for index, (holder, layer) in enumerate(zip(holders().values(), packed, strict=True)):
            holder.kernel = damage(index, layer)
        show(name, ask(engine))
    for holder, layer in zip(holders().values(), packed, strict=True):
        holder.kernel = kernel(layer)
    show("mended", ask(engine))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
