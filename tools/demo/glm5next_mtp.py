"""Give the small Glm5Next an MTP layer, untrained: drafts need not be good to show whether checking them is right.

    python tools/demo/glm5next_mtp.py tests/data/glm5next-faq FOLDER

The layer is a copy of the last one, EXL3 experts included, whose input is the sum of the normed embedding and state.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_LAST = re.compile(r"model\.layers\.(\d+)\.")


def add_mtp_layer(pack: Path, target: Path) -> None:
    """Write a copy of the pack with an MTP layer behind its last one."""
    shutil.copytree(pack, target)
    config = json.loads((pack / "config.json").read_text())
    text = config["text_config"]
    last, hidden = text["num_hidden_layers"] - 1, text["hidden_size"]
    tensors = load_file(pack / "model.safetensors")
    for name, tensor in list(tensors.items()):
        found = _LAST.match(name)
        # An MTP layer has one stream, so no mHC.
        if found and int(found[1]) == last and ".hc_" not in name:
            tensors[name.replace(f"layers.{last}.", f"layers.{last + 1}.", 1)] = tensor.clone()
    prefix = f"model.layers.{last + 1}"
    same = torch.eye(hidden, dtype=torch.bfloat16)
    tensors[f"{prefix}.eh_proj.weight"] = torch.cat([same, same], dim=1)
    for norm in ("enorm", "hnorm"):
        tensors[f"{prefix}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    tensors[f"{prefix}.shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    text["num_nextn_predict_layers"] = 1
    layer_bits = config["quantization_config"].get("layer_bits", {})
    if str(last) in layer_bits:
        layer_bits[str(last + 1)] = layer_bits[str(last)]
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    add_mtp_layer(options.pack, options.target)


if __name__ == "__main__":
    main()
