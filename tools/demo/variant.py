"""Make another pack of the demo's checkpoint, with the canary of its own reference.

    python tools/demo/variant.py FOLDER/k2 --bits 2 [--codebook mul1]

The tolerance is that of the demo pack, which covers 2 to 8 bits (docs/canary.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bless import CHECKPOINT
from glm53_exl3.demo.canary import Canary, load_canary
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.quantize.pack import write_pack
from glm53_exl3.quantize.plan import plan_quantization
from reference import answers_of


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--bits", type=int, default=2, choices=range(2, 9))
    parser.add_argument("--codebook", default="mcg", choices=("mcg", "mul1"))
    options = parser.parse_args()
    write_pack(plan_quantization(CHECKPOINT, options.bits, {}, options.codebook), options.target)
    Canary(load_canary(demo_pack()).tolerance, answers_of(options.target)).save(options.target)


if __name__ == "__main__":
    main()
