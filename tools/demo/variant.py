"""Make another pack of the demo's checkpoint, with the canary of its own reference.

    python tools/demo/variant.py FOLDER/k2 --bits 2 [--codebook mul1]
    python tools/demo/variant.py FOLDER/mixed --mixed
    python tools/demo/variant.py FOLDER/by-expert --by-expert

The tolerance is that of the demo pack, which covers 2 to 8 bits (docs/canary.md).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from bless import CHECKPOINT
from glm53_exl3.demo.canary import Canary, load_canary
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.format.names import ExpertName
from glm53_exl3.quantize.pack import write_pack
from glm53_exl3.quantize.plan import QuantizePlan, plan_quantization
from reference import answers_of

#: Bits of gate, up and down by decoder layer; the demo pack differs by layer only.
MIX = {1: {"gate_proj": 2, "up_proj": 3, "down_proj": 2}, 2: {"gate_proj": 3, "up_proj": 2, "down_proj": 3}}


def mixed_inside_layers(plan: QuantizePlan, *, by_expert: bool) -> QuantizePlan:
    """The same plan with the bits of MIX, of every third expert two more."""

    def bits(name: ExpertName) -> int:
        return MIX[name.layer][name.projection] + (2 if by_expert and name.expert % 3 == 0 else 0)

    experts = {name: replace(weight, bits=bits(weight.expert)) for name, weight in plan.experts.items()}
    return replace(plan, experts=experts)


def forget_bits(pack: Path) -> None:
    """State none in the configuration, which has no words for rates that differ inside a layer."""
    path = pack / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]["bits"]
    path.write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--bits", type=int, default=2, choices=range(2, 9))
    parser.add_argument("--codebook", default="mcg", choices=("mcg", "mul1"))
    parser.add_argument("--mixed", action="store_true", help="2 and 3 bits inside each layer")
    parser.add_argument("--by-expert", action="store_true", help="the same, and 4 and 5 for some experts")
    options = parser.parse_args()
    plan = plan_quantization(CHECKPOINT, options.bits, {}, options.codebook)
    mixed = options.mixed or options.by_expert
    write_pack(mixed_inside_layers(plan, by_expert=options.by_expert) if mixed else plan, options.target)
    if mixed:
        forget_bits(options.target)
    Canary(load_canary(demo_pack()).tolerance, answers_of(options.target)).save(options.target)


if __name__ == "__main__":
    main()
