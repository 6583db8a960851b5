"""Make the demo pack from the checkpoint, and its canary from what is measured. Review the diff before committing.

    python tools/demo/bless.py [--keep-pack] [--spread 0.00208]

The tolerance of the canary is twice the spread: the largest difference between the float32 reference and vLLM. It is
measured on this pack over bf16 and float32 and over batches of 44, 7 and 1; a larger one, seen by `table.py` on packs
of other rates, is given by --spread.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from glm53_exl3.demo.canary import Canary
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.quantize.pack import write_pack
from glm53_exl3.quantize.plan import plan_quantization
from reference import answers_of
from runs import run_in_vllm

CHECKPOINT = Path(__file__).parent / "checkpoint"
BITS = 2
#: As in the K2/K3 mix of GLM-5.3-Flash, some layers have another rate.
LAYER_BITS = {2: 3}
BATCHES = (44, 7, 1)


def make_pack(target: Path, bits: int = BITS, layer_bits: dict[int, int] | None = None) -> None:
    """Quantize the checkpoint anew."""
    if target.exists():
        shutil.rmtree(target)
    write_pack(plan_quantization(CHECKPOINT, bits, layer_bits or {}, "mcg"), target)
    for path in target.iterdir():
        path.chmod(0o644)


def measured_spread(pack: Path, exact: Canary) -> float:
    """Largest difference of an answer's log-probability between vLLM and the reference.

    Raises:
        SystemExit: an answer has other words.
    """
    spread = 0.0
    for dtype in ("bfloat16", "float32"):
        for run, answers in run_in_vllm(pack, "--dtype", dtype, "--batches", *map(str, BATCHES)):
            for answer in answers:
                right = exact.expected(answer.question)
                if right is None or right.answer != answer.answer:
                    raise SystemExit(f"{dtype}, {run}: {answer.question!r} got {answer.answer!r}")
                spread = max(spread, abs(answer.logprob - right.logprob))
            print(f"{dtype:8} {run}: largest difference so far {spread:.5f}", flush=True)
    return spread


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-pack", action="store_true", help="only measure; the pack stays as it is")
    parser.add_argument("--spread", type=float, default=0.0, help="the spread is at least this")
    options = parser.parse_args()
    pack = demo_pack()
    if not options.keep_pack:
        make_pack(pack, BITS, LAYER_BITS)
    exact = Canary(0.0, answers_of(pack))
    spread = max(options.spread, measured_spread(pack, exact))
    Canary(2 * spread, exact.answers).save(pack)
    print(f"spread {spread:.5f}, tolerance {2 * spread:.5f}")


if __name__ == "__main__":
    main()
