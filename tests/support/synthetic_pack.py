"""The K2 pack of GLM-5.3-Flash without its weights: real names, dtypes, shapes and headers over holes.

Names and shapes of the routed experts are those of the published pack. Those of everything else were derived from the
model code (vLLM 0.32.0's `models/glm5next` and transformers' `Glm5NextConfig`), because no header of the real pack
was at hand. How its tensors are spread over the 120 shards is a guess. That all of them are BF16 is one too, but the
files of the pack come out at its published size to one part in a hundred thousand, and 0.07 % larger with F32 for
those that vLLM keeps in F32.

Every tensor reads as zeros except the codebook markers, which hold their value. A pack takes
about 36 MB of disk, 190 MB when the markers are scattered.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from support.packs import MCG, PROJECTIONS, write_json

INDEX_FILE: Final = "model.safetensors.index.json"
NUM_SHARDS: Final = 120
NUM_LAYERS: Final = 45
MTP_LAYER: Final = NUM_LAYERS
DENSE_LAYERS: Final = 3
NUM_EXPERTS: Final = 288
EXPERTS_PER_TOKEN: Final = 8
HIDDEN: Final = 4096
WIDTH: Final = 2048
VOCABULARY: Final = 154_880
#: Layers of the mixed pack whose experts have three bits.
MIXED_LAYERS: Final = (24, 27, 35, 37, 42, 45)
PREFIX: Final = "model.language_model"
_HEADS, _HEAD_DIM, _Q_LORA, _KV_LORA = 64, 256, 1536, 512
_KDA_HEADS, _KDA_DIM, _CONVOLUTION = 64, 128, 4
_INDEX_HEADS, _INDEX_DIM, _POOL = 32, 128, 4
_STREAMS = 4
_DENSE_WIDTH = 12_288
_VISION_DEPTH, _VISION_HIDDEN, _VISION_WIDTH, _VISION_HEAD_DIM = 24, 1024, 4096, 64
_VISION_OUT, _VISION_CONTEXT, _PATCH = HIDDEN, 10_240, 14
_DTYPE_ORDER: Final = ("I32", "BF16", "F16", "I16")
_DTYPE_BYTES: Final = {"I16": 2, "F16": 2, "BF16": 2, "I32": 4}


class Stub(NamedTuple):
    """One tensor without data."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of its data."""
        size = _DTYPE_BYTES[self.dtype]
        for length in self.shape:
            size *= length
        return size


def write_synthetic_pack(directory: Path, mixed: bool = False, scattered: bool = False) -> Path:
    """Write the pack in about two seconds; `mixed` gives six layers three bits.

    Shards are filled in the order of the tensors to about the same size, so a layer's experts span three of them.
    Within a shard tensors lie as the safetensors library writes them, markers side by side; with `scattered` each
    marker lies beside its trellis.
    """
    directory.mkdir(parents=True)
    bits = {layer: 3 if mixed and layer in MIXED_LAYERS else 2 for layer in range(DENSE_LAYERS, MTP_LAYER + 1)}
    stubs = [*model_stubs(), *(stub for layer, rate in bits.items() for stub in expert_stubs(layer, rate))]
    total = sum(stub.num_bytes for stub in stubs)
    weight_map: dict[str, str] = {}
    for number, held in enumerate(_in_shards(stubs, total), start=1):
        shard = f"model-{number:05}-of-{NUM_SHARDS:05}.safetensors"
        write_stub_shard(directory / shard, held, scattered)
        weight_map |= dict.fromkeys((stub.name for stub in held), shard)
    write_json(directory / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
    stated: dict[str, Any] = {
        "quant_method": "exl3",
        "bits": 2,
        "codebook": "mcg",
        "scope": "glm53_routed_experts_only",
    }
    if mixed:
        stated["layer_bits"] = {str(layer): 3 for layer in MIXED_LAYERS}
    write_json(directory / "config.json", model_config(stated))
    write_json(directory / "generation_config.json", {"eos_token_id": [154_820, 154_827, 154_829]})
    write_json(directory / "tokenizer.json", {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}})
    write_json(directory / "tokenizer_config.json", {"model_max_length": 1_048_576})
    write_json(directory / "preprocessor_config.json", {"image_processor_type": "Glm5NextImageProcessor"})
    (directory / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return directory


def write_stub_shard(path: Path, stubs: list[Stub], scattered: bool = False) -> None:
    """One shard whose data are holes but for the markers; sorted as the safetensors library does unless `scattered`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end, markers = 0, []
    for stub in stubs if scattered else sorted(stubs, key=lambda stub: (_DTYPE_ORDER.index(stub.dtype), stub.name)):
        if stub.name.endswith(".mcg"):
            markers.append(end)
        header[stub.name] = {"dtype": stub.dtype, "shape": stub.shape, "data_offsets": (end, end + stub.num_bytes)}
        end += stub.num_bytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.ftruncate(descriptor, 8 + len(raw) + end)
        os.pwrite(descriptor, struct.pack("<Q", len(raw)) + raw, 0)
        for offset in markers:
            os.pwrite(descriptor, struct.pack("<i", MCG), 8 + len(raw) + offset)
    finally:
        os.close(descriptor)


def read_stubs(path: Path) -> list[Stub]:
    """The tensors of one shard, to be changed and written back."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [Stub(name, entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()]


def link_pack(pack: Path, directory: Path) -> Path:
    """A copy of a pack that shares its shards until :func:`change_shard` writes one anew."""
    directory.mkdir(parents=True)
    for path in pack.iterdir():
        if path.suffix == ".safetensors":
            os.link(path, directory / path.name)
        else:
            (directory / path.name).write_bytes(path.read_bytes())
    return directory


def shard_of(pack: Path, name: str) -> Path:
    """The shard that the index names for a tensor."""
    index = json.loads((pack / INDEX_FILE).read_text())
    return pack / index["weight_map"][name]


def change_shard(path: Path, change: Callable[[list[Stub]], list[Stub]]) -> None:
    """Write a shard anew with other tensors; the index follows, if there is one."""
    before = read_stubs(path)
    after = change(before)
    path.unlink()
    write_stub_shard(path, after)
    index_path = path.parent / INDEX_FILE
    if index_path.exists():
        index = json.loads(index_path.read_text())
        for stub in before:
            index["weight_map"].pop(stub.name)
        index["weight_map"] |= dict.fromkeys((stub.name for stub in after), path.name)
        index["metadata"]["total_size"] += sum(s.num_bytes for s in after) - sum(s.num_bytes for s in before)
        write_json(index_path, index)


def expert_stubs(layer: int, bits: int) -> Iterator[Stub]:
    """The EXL3 tensors of the routed experts of a layer."""
    for expert in range(NUM_EXPERTS):
        for projection in PROJECTIONS:
            rows, columns = (WIDTH, HIDDEN) if projection == "down_proj" else (HIDDEN, WIDTH)
            name = f"{PREFIX}.layers.{layer}.mlp.experts.{expert}.{projection}"
            yield Stub(f"{name}.trellis", "I16", (rows // 16, columns // 16, 16 * bits))
            yield Stub(f"{name}.suh", "F16", (rows,))
            yield Stub(f"{name}.svh", "F16", (columns,))
            yield Stub(f"{name}.mcg", "I32", (1,))


def model_stubs() -> Iterator[Stub]:
    """Every tensor that is no routed expert."""
    yield _linear(f"{PREFIX}.embed_tokens", HIDDEN, VOCABULARY)
    for layer in range(NUM_LAYERS):
        parts = [*(_mla() if layer % 4 == 3 else _kda()), *_hyper_connections(), *_norms()]
        parts += _mlp("mlp", _DENSE_WIDTH) if layer < DENSE_LAYERS else _moe()
        yield from _in_layer(layer, parts)
    extra = [_norm("enorm"), _norm("hnorm"), _linear("eh_proj", 2 * HIDDEN, HIDDEN), _norm("shared_head.norm")]
    yield from _in_layer(MTP_LAYER, [*extra, *_mla(), *_norms(), *_moe()])
    yield _norm(f"{PREFIX}.norm")
    yield _linear("lm_head", HIDDEN, VOCABULARY)
    for stub in _vision():
        yield stub._replace(name=f"model.visual.{stub.name}")


def model_config(stated: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` of GLM-5.3-Flash with this `quantization_config`."""
    text = {
        "model_type": "glm5_next_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": _DENSE_WIDTH,
        "moe_intermediate_size": WIDTH,
        "num_hidden_layers": NUM_LAYERS,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "n_routed_experts": NUM_EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": EXPERTS_PER_TOKEN,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "q_lora_rank": _Q_LORA,
        "kv_lora_rank": _KV_LORA,
        "qk_nope_head_dim": _HEAD_DIM,
        "qk_rope_head_dim": 0,
        "v_head_dim": _HEAD_DIM,
        "mla_use_nope": True,
        "index_n_heads": _INDEX_HEADS,
        "index_head_dim": _INDEX_DIM,
        "index_topk": 2048,
        "index_kpool": _POOL,
        "index_kpool_always_select_tail": True,
        "indexer_rope_interleave": True,
        "linear_num_heads": _KDA_HEADS,
        "linear_head_dim": _KDA_DIM,
        "linear_conv_kernel_dim": _CONVOLUTION,
        "linear_lower_bound": -5.0,
        "mhc": True,
        "hc_mult": _STREAMS,
        "hc_sinkhorn_iters": 20,
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1_048_576,
        "tie_word_embeddings": False,
        "pad_token_id": 154_820,
        "mlp_layer_types": ["dense"] * DENSE_LAYERS + ["sparse"] * (NUM_LAYERS - DENSE_LAYERS),
        "layer_types": ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(NUM_LAYERS)],
    }
    vision = {
        "model_type": "glm5_next_vision",
        "depth": _VISION_DEPTH,
        "hidden_size": _VISION_HIDDEN,
        "intermediate_size": _VISION_WIDTH,
        "num_heads": _VISION_HIDDEN // _VISION_HEAD_DIM,
        "out_hidden_size": _VISION_OUT,
        "projection_intermediate_size": _VISION_CONTEXT,
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 154_854,
        "video_token_id": 154_855,
        "tie_word_embeddings": False,
        "quantization_config": dict(stated),
    }


def _in_shards(stubs: list[Stub], total: int) -> Iterator[list[Stub]]:
    held: list[Stub] = []
    written = shard = 0
    for stub in stubs:
        if held and shard + 1 < NUM_SHARDS and written >= total * (shard + 1) // NUM_SHARDS:
            yield held
            held, shard = [], shard + 1
        held.append(stub)
        written += stub.num_bytes
    yield held


def _in_layer(layer: int, stubs: list[Stub]) -> Iterator[Stub]:
    for stub in stubs:
        yield stub._replace(name=f"{PREFIX}.layers.{layer}.{stub.name}")


def _linear(name: str, inputs: int, outputs: int) -> Stub:
    return Stub(f"{name}.weight", "BF16", (outputs, inputs))


def _norm(name: str, size: int = HIDDEN) -> Stub:
    return Stub(f"{name}.weight", "BF16", (size,))


def _norms() -> list[Stub]:
    return [_norm("input_layernorm"), _norm("post_attention_layernorm")]


def _mlp(name: str, width: int) -> list[Stub]:
    return [
        _linear(f"{name}.gate_proj", HIDDEN, width),
        _linear(f"{name}.up_proj", HIDDEN, width),
        _linear(f"{name}.down_proj", width, HIDDEN),
    ]


def _moe() -> list[Stub]:
    return [
        _linear("mlp.gate", HIDDEN, NUM_EXPERTS),
        Stub("mlp.gate.e_score_correction_bias", "BF16", (NUM_EXPERTS,)),
        *_mlp("mlp.shared_experts", WIDTH),
    ]


def _hyper_connections() -> list[Stub]:
    mixes = (2 + _STREAMS) * _STREAMS
    shapes = {"fn": (mixes, _STREAMS * HIDDEN), "base": (mixes,), "scale": (3,)}
    return [Stub(f"hc_{part}_{name}", "BF16", shape) for part in ("attn", "ffn") for name, shape in shapes.items()]


def _kda() -> list[Stub]:
    size = _KDA_HEADS * _KDA_DIM
    stubs = [_linear(f"{name}_proj", HIDDEN, size) for name in "qkv"]
    stubs += [Stub(f"{name}_conv1d.weight", "BF16", (size, 1, _CONVOLUTION)) for name in "qkv"]
    for name in "fg":
        stubs += [_linear(f"{name}_a_proj", HIDDEN, _KDA_DIM), _linear(f"{name}_b_proj", _KDA_DIM, size)]
    stubs += [
        _linear("b_proj", HIDDEN, _KDA_HEADS),
        Stub("dt_bias", "BF16", (size,)),
        Stub("A_log", "BF16", (_KDA_HEADS,)),
        _norm("o_norm", _KDA_DIM),
        _linear("o_proj", size, HIDDEN),
    ]
    return [stub._replace(name=f"self_attn.{stub.name}") for stub in stubs]


def _mla() -> list[Stub]:
    size = _HEADS * _HEAD_DIM
    indexer = [
        Stub("index_kpool_compress_ape", "BF16", (_POOL, _INDEX_DIM)),
        Stub("index_kpool_compress_gate", "BF16", (_INDEX_DIM, HIDDEN)),
        _linear("wq_b", _Q_LORA, _INDEX_HEADS * _INDEX_DIM),
        _linear("wk", HIDDEN, _INDEX_DIM),
        _linear("weights_proj", HIDDEN, _INDEX_HEADS),
        _norm("k_norm", _INDEX_DIM),
        Stub("k_norm.bias", "BF16", (_INDEX_DIM,)),
    ]
    stubs = [
        _linear("q_a_proj", HIDDEN, _Q_LORA),
        _linear("kv_a_proj_with_mqa", HIDDEN, _KV_LORA),
        _norm("q_a_layernorm", _Q_LORA),
        _norm("kv_a_layernorm", _KV_LORA),
        _linear("q_b_proj", _Q_LORA, size),
        _linear("kv_b_proj", _KV_LORA, 2 * size),
        _linear("o_proj", size, HIDDEN),
        *(stub._replace(name=f"indexer.{stub.name}") for stub in indexer),
    ]
    return [stub._replace(name=f"self_attn.{stub.name}") for stub in stubs]


def _vision() -> Iterator[Stub]:
    yield Stub("patch_embed.proj.weight", "BF16", (_VISION_HIDDEN, 3, 2, _PATCH, _PATCH))
    yield Stub("patch_embed.proj.bias", "BF16", (_VISION_HIDDEN,))
    for block in range(_VISION_DEPTH):
        for name, inputs, outputs in (
            ("attn.qkv", _VISION_HIDDEN, 3 * _VISION_HIDDEN),
            ("attn.proj", _VISION_HIDDEN, _VISION_HIDDEN),
            ("mlp.gate_proj", _VISION_HIDDEN, _VISION_WIDTH),
            ("mlp.up_proj", _VISION_HIDDEN, _VISION_WIDTH),
            ("mlp.down_proj", _VISION_WIDTH, _VISION_HIDDEN),
        ):
            yield _linear(f"blocks.{block}.{name}", inputs, outputs)
            yield Stub(f"blocks.{block}.{name}.bias", "BF16", (outputs,))
        for name, size in (
            ("norm1", _VISION_HIDDEN),
            ("norm2", _VISION_HIDDEN),
            ("attn.q_norm", _VISION_HEAD_DIM),
            ("attn.k_norm", _VISION_HEAD_DIM),
        ):
            yield _norm(f"blocks.{block}.{name}", size)
    yield _norm("post_layernorm", _VISION_HIDDEN)
    yield Stub("downsample.weight", "BF16", (_VISION_OUT, _VISION_HIDDEN, 2, 2))
    yield Stub("downsample.bias", "BF16", (_VISION_OUT,))
    yield _linear("merger.proj", _VISION_OUT, _VISION_OUT)
    yield _norm("merger.post_projection_norm", _VISION_OUT)
    yield Stub("merger.post_projection_norm.bias", "BF16", (_VISION_OUT,))
    yield _linear("merger.gate_proj", _VISION_OUT, _VISION_CONTEXT)
    yield _linear("merger.up_proj", _VISION_OUT, _VISION_CONTEXT)
    yield _linear("merger.down_proj", _VISION_CONTEXT, _VISION_OUT)
