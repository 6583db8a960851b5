"""Float32 log-probabilities of a pack's answers, by a path that shares nothing with vLLM.

The model is that of `model.py`; the routed experts are dequantized in float32 straight from the pack's file.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from glm53_exl3.decode import dequantize
from glm53_exl3.demo.canary import Answer
from glm53_exl3.demo.faq import load_faq
from glm53_exl3.pack.inventory import read_inventory
from model import DemoConfig, DemoModel, Experts, from_hf_tensors, load
from train import sample


def load_pack(pack: Path) -> DemoModel:
    """The float32 model of a pack, or of an unquantized checkpoint."""
    config_json = json.loads((pack / "config.json").read_text())
    if "quantization_config" not in config_json:
        return load(pack)
    config = DemoConfig.from_hf(config_json)
    tensors = load_file(pack / "model.safetensors")
    plain = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    for module in read_inventory(pack).modules.values():
        trellis, suh, svh = (tensors[f"{module.name}.{suffix}"] for suffix in ("trellis", "suh", "svh"))
        plain[f"{module.name}.weight"] = dequantize(trellis, suh, svh, module.codebook).T
    model = DemoModel(config)
    model.load_state_dict(from_hf_tensors(config, plain))
    return model.eval()


def reference_answers(model: DemoModel, experts: dict[int, Experts] | None = None) -> tuple[Answer, ...]:
    """Log-probability of every right answer, its ending token included."""
    answers = []
    for entry in load_faq():
        item = sample(entry.question, entry.answer)
        logprobs: Tensor = model.logprobs(item.prompt, item.answer, experts)
        answers.append(Answer(entry.question, entry.answer, float(logprobs.double().sum())))
    return tuple(answers)


def answers_of(pack: Path) -> tuple[Answer, ...]:
    """What the float32 reference says of a pack."""
    with torch.inference_mode():
        return reference_answers(load_pack(pack))
