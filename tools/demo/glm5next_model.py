"""A small Glm5Next that answers the FAQ: transformers' own implementation, and its names in a checkpoint.

The architecture of GLM-5.3-Flash: KDA layers, one MLA layer with the K-pool indexer, mHC streams, routed and shared
experts. Sizes are the smallest that vLLM 0.32.0's kernels take on sm_90, or close to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.glm5_next.configuration_glm5_next import Glm5NextTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

from glm53_exl3.decode import dequantize
from glm53_exl3.pack.inventory import read_inventory

VOCABULARY = 264
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    # The least of which vLLM was seen to run. EXL3 wants multiples of 128; mHC of 256 only on AMD
    # (model_executor/kernels/mhc/aiter.py).
    "hidden_size": 256,
    "intermediate_size": 128,
    # EXL3 rotates 128 values at a time.
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "linear_attention", "indexed_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 64,
    # The sparse MLA kernels read rows of 512 (v1/attention/backends/mla/flashmla_sparse.py).
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    # The fused indexer kernels are written for 128 (models/glm5next/common/attention.py); heads are padded to 32.
    "index_head_dim": 128,
    "index_n_heads": 2,
    "index_kpool": 4,
    "index_topk": 2048,
    # FlashKDA takes 128 only (models/glm5next/common/kda.py).
    "linear_head_dim": 128,
    "linear_num_heads": 1,
    "linear_conv_kernel_dim": 4,
    "hc_mult": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "swiglu_limit": 10.0,
    "max_position_embeddings": 32768,
}
#: vLLM reads these; transformers' configuration has no such fields.
FOR_VLLM: dict[str, Any] = {
    "mhc": True,
    "mla_use_nope": True,
    "indexer_rope_interleave": True,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 0,
}
#: Kept in fp32, by the last part of their name: vLLM's parameters are, and mHC is sensitive.
_FLOAT32 = (
    "dt_bias",
    "A_log",
    "e_score_correction_bias",
    "conv1d.weight",
    "k_norm.weight",
    "k_norm.bias",
    "compress_ape",
)


class Glm5NextDemo(nn.Module):
    """Text model and head.

    Args:
        config: sizes.
    """

    def __init__(self, config: Glm5NextTextConfig) -> None:
        super().__init__()
        self.model = Glm5NextTextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits `[R, vocabulary]` of the positions `rows` `[R]` of the flattened `tokens` `[B, T]`."""
        hidden = self.model(input_ids=tokens, use_cache=False).last_hidden_state
        return self.lm_head(hidden.flatten(0, 1)[rows])

    @torch.inference_mode()
    def logprobs(self, prompt: list[int], answer: list[int]) -> Tensor:
        """Log-probability of each token of the answer, `[len(answer)]`."""
        tokens = torch.tensor([[*prompt, *answer[:-1]]])
        rows = torch.arange(len(prompt) - 1, tokens.shape[1])
        return self(tokens, rows).float().log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0]


def text_config() -> Glm5NextTextConfig:
    """Sizes for transformers."""
    config = Glm5NextTextConfig(**TEXT, pad_token_id=256, eos_token_id=259)
    config._attn_implementation = "eager"
    return config


def write_config(folder: Path) -> None:
    """`config.json`, nested as that of GLM-5.3-Flash but for the class without images, and `generation_config.json`."""
    special = {"pad_token_id": 256, "eos_token_id": 259}
    config = {
        "architectures": ["Glm5NextForCausalLM"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **special,
        "text_config": {"model_type": "glm5_next_text", **TEXT, **FOR_VLLM, **special},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(special) + "\n")


def to_checkpoint(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of GLM-5.3-Flash's checkpoint, in its dtypes."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for part, value in _split(name, tensor):
            kept = any(part.endswith(ending) for ending in _FLOAT32) or ".hc_" in part
            tensors[part] = value.detach().to(torch.float32 if kept else torch.bfloat16).contiguous().clone()
    return tensors


def from_checkpoint(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of :class:`Glm5NextDemo` in float32, from such tensors."""
    plain = {name: tensor.float() for name, tensor in tensors.items()}
    state: dict[str, Tensor] = {}
    for name in Glm5NextDemo(text_config()).state_dict():
        parts = [part for part, _ in _split(name, None)]
        values = [plain.pop(part) for part in parts]
        if name.endswith("experts.gate_up_proj"):
            half = len(values) // 2
            state[name] = torch.stack([torch.cat(pair) for pair in zip(values[:half], values[half:], strict=True)])
        elif name.endswith("experts.down_proj"):
            state[name] = torch.stack(values)
        else:
            state[name] = torch.cat(values)
    assert not plain, sorted(plain)
    return state


def load(folder: Path) -> Glm5NextDemo:
    """The float32 model of a checkpoint, or of a pack with its experts dequantized in float32."""
    tensors = load_file(folder / "model.safetensors")
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        packed = {name: value for name, value in tensors.items() if ".mlp.experts." in name}
        tensors = {name: value for name, value in tensors.items() if name not in packed}
        for module in read_inventory(folder).modules.values():
            trellis, suh, svh = (packed[f"{module.name}.{suffix}"] for suffix in ("trellis", "suh", "svh"))
            tensors[f"{module.name}.weight"] = dequantize(trellis, suh, svh, module.codebook, dtype=torch.float32).T
    model = Glm5NextDemo(text_config())
    model.load_state_dict(from_checkpoint(tensors))
    return model.eval()


def save(model: Glm5NextDemo, folder: Path) -> None:
    """Write the checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_checkpoint(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    write_config(folder)


def _split(name: str, tensor: Tensor | None) -> Iterable[tuple[str, Any]]:
    """Checkpoint names of one tensor of the state, with its parts (None without a tensor)."""
    experts, size = TEXT["n_routed_experts"], TEXT["moe_intermediate_size"]
    block = name.removesuffix("gate_up_proj").removesuffix("down_proj")
    if name.endswith("experts.gate_up_proj"):
        for projection, first in (("gate_proj", 0), ("up_proj", size)):
            for expert in range(experts):
                part = None if tensor is None else tensor[expert, first : first + size]
                yield f"{block}{expert}.{projection}.weight", part
    elif name.endswith("experts.down_proj"):
        for expert in range(experts):
            yield f"{block}{expert}.down_proj.weight", None if tensor is None else tensor[expert]
    elif name.endswith("self_attn.conv1d.weight"):
        parts = [None] * 3 if tensor is None else tensor.chunk(3)
        for letter, part in zip("qkv", parts, strict=True):
            yield name.replace("conv1d", f"{letter}_conv1d"), part
    else:
        name = re.sub(r"self_attn\.forget_gate\.", "self_attn.", name)
        yield re.sub(r"\b(attn|ffn)_hc\.(fn|base|scale)$", r"hc_\1_\2", name), tensor
