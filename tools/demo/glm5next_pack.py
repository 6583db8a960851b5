"""Quantize the small Glm5Next and write the canary that transformers computes for the pack.

    python tools/demo/glm5next_pack.py --checkpoint FOLDER --out tests/data/glm5next-faq

The answers' log-probabilities are those of transformers' own forward in float32 on the dequantized experts. The
tolerance is ten times the largest difference that the same forward shows in bfloat16: vLLM computes in bfloat16 too,
but in another order everywhere (absorbed MLA, fused KDA, experts in fp16).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from glm5next_model import Glm5NextDemo, load
from glm53_exl3.demo.canary import Answer, Canary
from glm53_exl3.demo.faq import load_faq
from glm53_exl3.quantize.pack import write_pack
from glm53_exl3.quantize.plan import plan_quantization
from train import sample

BITS = 2
#: As in the K2/K3 mix of GLM-5.3-Flash, some layers have another rate.
LAYER_BITS = {2: 3}
ROOM = 10


def answers_of(model: Glm5NextDemo) -> tuple[Answer, ...]:
    """Log-probability of every right answer, its ending token included.

    Raises:
        SystemExit: the model would give other words.
    """
    answers = []
    for entry in load_faq():
        item = sample(entry.question, entry.answer)
        logprobs = model.logprobs(item.prompt, item.answer)
        if float(logprobs.min()) < -0.7:
            raise SystemExit(
                f"{entry.question!r}: a token of the right answer has log-probability {logprobs.min():.2f}"
            )
        answers.append(Answer(entry.question, entry.answer, float(logprobs.double().sum())))
    return tuple(answers)


def in_bfloat16(model: Glm5NextDemo) -> Glm5NextDemo:
    """The model as transformers would load it in bfloat16: some parameters stay in float32."""
    kept = ("e_score_correction_bias", "conv1d", "dt_bias", "A_log")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not any(part in name for part in kept):
            tensor.data = tensor.data.bfloat16()
    return model


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=BITS)
    parser.add_argument("--uniform", action="store_true", help="the same rate in all layers")
    options = parser.parse_args()
    if options.out.exists():
        shutil.rmtree(options.out)
    layer_bits = LAYER_BITS if options.bits == BITS and not options.uniform else {}
    write_pack(plan_quantization(options.checkpoint, options.bits, layer_bits, "mcg"), options.out)
    for path in options.out.iterdir():
        path.chmod(0o644)
    exact = answers_of(load(options.out))
    rounded = answers_of(in_bfloat16(load(options.out)))
    spread = max(abs(one.logprob - two.logprob) for one, two in zip(exact, rounded, strict=True))
    Canary(ROOM * spread, exact).save(options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{size / 1e6:.2f} MB, spread in bfloat16 {spread:.5f}, tolerance {ROOM * spread:.5f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
