"""The demo pack with one expert of other bits than the rest of its layer, and the canary of that pack.

`tests/data/by-expert` holds the expert, of 4, 5 and 4 bits in a layer of 2, as `tools/demo/variant.py --by-expert` made
it, and the canary that `tools/demo/reference.py` gave for the whole.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from glm53_exl3.demo.faq import demo_pack

DATA = Path(__file__).parents[1] / "data" / "by-expert"


def write_by_expert(target: Path) -> Path:
    """Write the pack; its configuration states no bits, as it has no words for such a layer."""
    shutil.copytree(demo_pack(), target)
    tensors = load_file(target / "model.safetensors")
    changed = load_file(DATA / "expert.safetensors")
    assert changed.keys() <= tensors.keys()
    save_file(tensors | changed, target / "model.safetensors")
    config = json.loads((target / "config.json").read_text())
    for name in ("bits", "layer_bits"):
        config["quantization_config"].pop(name, None)
    (target / "config.json").write_text(json.dumps(config))
    shutil.copy(DATA / "canary.json", target / "canary.json")
    return target
