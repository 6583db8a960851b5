"""A tiny Glm5Next checkpoint with EXL3 experts: GLM-5.3-Flash's names and layer kinds, small sizes.

Five decoder layers (KDA, but for one MLA layer with its sparse indexer) and one MTP layer after them. Hidden and
expert size differ, so that no tensor fits where its transpose belongs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from support.packs import PackRecipe, expert_tensors, write_json

PREFIX: Final = "model.language_model"
HIDDEN: Final = 384
WIDTH: Final = 256
EXPERTS: Final = 4
DENSE_LAYERS: Final = 1
MLA_LAYERS: Final = (3,)
NUM_LAYERS: Final = 5
MTP_LAYER: Final = NUM_LAYERS
#: K of each layer of routed experts; both kinds of attention and the MTP layer take part in the override.
BITS: Final = {1: 2, 2: 2, 3: 3, 4: 2, MTP_LAYER: 3}
SWIGLU_LIMIT: Final = 10.0
VOCABULARY: Final = 320
HEADS, HEAD_DIM, LORA = 4, 64, 128
KDA_HEADS, KDA_DIM, CONVOLUTION = 2, 128, 4
INDEX_HEADS, INDEX_DIM, POOL, STREAMS = 4, 128, 4, 4


def config() -> dict[str, Any]:
    """`config.json` of a `Glm5NextForConditionalGeneration`."""
    text = {
        "model_type": "glm5_next_text",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "moe_intermediate_size": WIDTH,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "kv_lora_rank": LORA,
        "q_lora_rank": LORA,
        "qk_nope_head_dim": HEAD_DIM,
        "v_head_dim": HEAD_DIM,
        "linear_head_dim": KDA_DIM,
        "linear_num_heads": KDA_HEADS,
        "linear_conv_kernel_dim": CONVOLUTION,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "index_topk": 128,
        "index_kpool": POOL,
        "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM,
        "hc_mult": STREAMS,
        "mlp_layer_types": ["dense"] * DENSE_LAYERS + ["sparse"] * (NUM_LAYERS - DENSE_LAYERS),
        "max_position_embeddings": 1024,
        "swiglu_limit": SWIGLU_LIMIT,
        # vLLM reads these too; transformers' Glm5NextTextConfig has no defaults for them.
        "num_nextn_predict_layers": 1,
        "mhc": True,
        "mla_use_nope": True,
        "indexer_rope_interleave": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    }
    tokens = ("image", "video", "image_start", "image_end", "video_start", "video_end")
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": {"model_type": "glm5_next_vision", "depth": 1, "hidden_size": 64, "num_heads": 2},
        **{f"{token}_token_id": number for number, token in enumerate(tokens, start=1)},
        "quantization_config": _recipe().stated,
    }


def write_checkpoint(directory: Path) -> Path:
    """A shard for each layer, for the experts of each layer and for the rest, an index and `config.json`."""
    directory.mkdir(parents=True)
    shards = {f"layer-{layer}": _layer(layer) for layer in range(NUM_LAYERS)}
    shards |= {f"layer-{MTP_LAYER}": _mtp_layer()}
    shards |= {experts_shard(layer): _experts(layer) for layer in BITS}
    shards["rest"] = {
        f"{PREFIX}.embed_tokens.weight": _random(VOCABULARY, HIDDEN),
        f"{PREFIX}.norm.weight": _random(HIDDEN),
        "lm_head.weight": _random(VOCABULARY, HIDDEN),
    }
    weight_map: dict[str, str] = {}
    for name, tensors in shards.items():
        shard = f"{name}.safetensors"
        save_file(tensors, directory / shard)
        weight_map |= dict.fromkeys(tensors, shard)
    write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_json(directory / "config.json", config())
    return directory


def experts_shard(layer: int) -> str:
    """Name, without its ending, of the shard with the experts of a layer."""
    return f"experts-{layer}"


def _recipe() -> PackRecipe:
    stated = {"quant_method": "exl3", "bits": 2, "codebook": "mcg"}
    overrides = {str(layer): bits for layer, bits in BITS.items() if bits != 2}
    return PackRecipe(
        bits=BITS,
        stated={**stated, "layer_bits": overrides},
        hidden=HIDDEN,
        width=WIDTH,
        num_experts=EXPERTS,
        prefix=f"{PREFIX}.layers",
    )


def _layer(layer: int) -> dict[str, torch.Tensor]:
    tensors = _mla() if layer in MLA_LAYERS else _kda()
    tensors |= _hyper_connections() | _norms()
    tensors |= _mlp("mlp") if layer < DENSE_LAYERS else _moe()
    return _placed(layer, tensors)


def _mtp_layer() -> dict[str, torch.Tensor]:
    extra = {
        "enorm.weight": _random(HIDDEN),
        "hnorm.weight": _random(HIDDEN),
        "eh_proj.weight": _random(HIDDEN, 2 * HIDDEN),
        "shared_head.norm.weight": _random(HIDDEN),
    }
    return _placed(MTP_LAYER, extra | _mla() | _norms() | _moe())


def _placed(layer: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{PREFIX}.layers.{layer}.{name}": tensor for name, tensor in tensors.items()}


def _experts(layer: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in expert_tensors(_recipe(), layer).items()}


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _norms() -> dict[str, torch.Tensor]:
    return {f"{name}_layernorm.weight": _random(HIDDEN) for name in ("input", "post_attention")}


def _mlp(name: str) -> dict[str, torch.Tensor]:
    return {
        f"{name}.gate_proj.weight": _random(WIDTH, HIDDEN),
        f"{name}.up_proj.weight": _random(WIDTH, HIDDEN),
        f"{name}.down_proj.weight": _random(HIDDEN, WIDTH),
    }


def _moe() -> dict[str, torch.Tensor]:
    return {
        "mlp.gate.weight": _random(EXPERTS, HIDDEN),
        "mlp.gate.e_score_correction_bias": _random(EXPERTS, dtype=torch.float32),
        **_mlp("mlp.shared_experts"),
    }


def _hyper_connections() -> dict[str, torch.Tensor]:
    mixes = (2 + STREAMS) * STREAMS
    shapes = {"fn": (mixes, STREAMS * HIDDEN), "base": (mixes,), "scale": (3,)}
    return {
        f"hc_{part}_{name}": _random(*shape, dtype=torch.float32)
        for part in ("attn", "ffn")
        for name, shape in shapes.items()
    }


def _kda() -> dict[str, torch.Tensor]:
    size = KDA_HEADS * KDA_DIM
    tensors = {f"{name}_proj.weight": _random(size, HIDDEN) for name in "qkv"}
    tensors |= {f"{name}_conv1d.weight": _random(size, 1, CONVOLUTION, dtype=torch.float32) for name in "qkv"}
    for name in "fg":
        tensors[f"{name}_a_proj.weight"] = _random(KDA_DIM, HIDDEN)
        tensors[f"{name}_b_proj.weight"] = _random(size, KDA_DIM)
    tensors |= {
        "b_proj.weight": _random(KDA_HEADS, HIDDEN),
        "dt_bias": _random(size, dtype=torch.float32),
        "A_log": _random(KDA_HEADS, dtype=torch.float32),
        "o_norm.weight": _random(KDA_DIM),
        "o_proj.weight": _random(HIDDEN, size),
    }
    return {f"self_attn.{name}": tensor for name, tensor in tensors.items()}


def _mla() -> dict[str, torch.Tensor]:
    size = HEADS * HEAD_DIM
    indexer = {
        "index_kpool_compress_ape": _random(POOL, INDEX_DIM, dtype=torch.float32),
        "index_kpool_compress_gate": _random(INDEX_DIM, HIDDEN),
        "wq_b.weight": _random(INDEX_HEADS * INDEX_DIM, LORA),
        "wk.weight": _random(INDEX_DIM, HIDDEN),
        "weights_proj.weight": _random(INDEX_HEADS, HIDDEN),
        "k_norm.weight": _random(INDEX_DIM, dtype=torch.float32),
        "k_norm.bias": _random(INDEX_DIM, dtype=torch.float32),
    }
    tensors = {
        "q_a_proj.weight": _random(LORA, HIDDEN),
        "kv_a_proj_with_mqa.weight": _random(LORA, HIDDEN),
        "q_a_layernorm.weight": _random(LORA),
        "kv_a_layernorm.weight": _random(LORA),
        "q_b_proj.weight": _random(size, LORA),
        "kv_b_proj.weight": _random(2 * size, LORA),
        "o_proj.weight": _random(HIDDEN, size),
    }
    tensors |= {f"indexer.{name}": tensor for name, tensor in indexer.items()}
    return {f"self_attn.{name}": tensor for name, tensor in tensors.items()}
