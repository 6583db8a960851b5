"""Float32 Glm4Moe in plain torch: the model that the demo trains, and the reference for its log-probabilities.

Weights keep the `nn.Linear` layout `[out, in]`. Routed experts are stacked per layer, so that a caller can plug in
dequantized or damaged ones without touching the rest: every forward takes an optional `experts` mapping.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """The fields of `config.json` that shape the computation, named as Hugging Face names them."""

    vocab_size: int = 320
    hidden_size: int = 256
    intermediate_size: int = 128
    moe_intermediate_size: int = 256
    num_hidden_layers: int = 3
    first_k_dense_replace: int = 1
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    routed_scaling_factor: float = 1.5
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.5
    max_position_embeddings: int = 1024

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> DemoConfig:
        """Read a `config.json` dict; a variant that this file does not compute is refused."""
        fixed = {
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        }
        for key, want in fixed.items():
            if raw.get(key) != want:
                raise ValueError(f"config.json: {key} is {raw.get(key)!r}, the demo model only computes {want!r}")
        flat = {**raw, **raw["rope_parameters"]}
        return cls(**{field.name: flat[field.name] for field in fields(cls)})

    def to_hf(self, eos: int, pad: int) -> dict[str, Any]:
        """`config.json` content for transformers and vLLM."""
        shape = asdict(self)
        rope = {
            "rope_type": "default",
            "rope_theta": shape.pop("rope_theta"),
            "partial_rotary_factor": shape.pop("partial_rotary_factor"),
        }
        return {
            "architectures": ["Glm4MoeForCausalLM"],
            "model_type": "glm4_moe",
            "dtype": "bfloat16",
            **shape,
            "rope_parameters": rope,
            "hidden_act": "silu",
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "use_qk_norm": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": 0,
            "initializer_range": 0.02,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
        }


class Experts(NamedTuple):
    """Routed experts of one layer: gate and up `[E, I, H]`, down `[E, H, I]`."""

    gate: Tensor
    up: Tensor
    down: Tensor


class RMSNorm(nn.Module):
    """y = x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """`[..., size]` -> `[..., size]`."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Attention(nn.Module):
    """Causal grouped-query attention with q/k norm and neox-style rotation of the first `rotary` channels."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, H]` -> `[B, T, H]`."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.config.head_dim)
        q = self._rotate(self.q_norm(self.q_proj(x).view(split)).transpose(1, 2))
        k = self._rotate(self.k_norm(self.k_proj(x).view(split)).transpose(1, 2))
        v = self.v_proj(x).view(split).transpose(1, 2)
        repeat = self.config.num_attention_heads // self.config.num_key_value_heads
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))
        return out

    def _rotate(self, x: Tensor) -> Tensor:
        """`[B, heads, T, D]` -> same shape, positions counted from 0."""
        rotary = int(self.config.head_dim * self.config.partial_rotary_factor)
        frequency = self.config.rope_theta ** (-torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
        angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second, rest = x[..., : rotary // 2], x[..., rotary // 2 : rotary], x[..., rotary:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class DenseMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., H]` -> `[..., H]`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Router(nn.Module):
    """Sigmoid scores; the correction bias takes part in the choice of experts, not in their weights."""

    e_score_correction_bias: Tensor

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor, noise: float = 0.0) -> tuple[Tensor, Tensor]:
        """`[N, H]` -> expert ids `[N, k]` and weights `[N, k]`; `noise` jitters the choice during training."""
        scores = F.linear(x, self.weight).sigmoid()
        choice = scores.detach() + self.e_score_correction_bias
        if noise:
            choice = choice + noise * torch.randn_like(choice)
        ids = choice.topk(self.config.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, ids)
        return ids, weights / weights.sum(-1, keepdim=True) * self.config.routed_scaling_factor


class MoE(nn.Module):
    """Routed experts beside one shared expert."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        count, width, hidden = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
        self.gate = Router(config)
        self.shared_experts = DenseMLP(hidden, width * config.n_shared_experts)
        self.experts = nn.ParameterDict(
            {
                "gate": torch.empty(count, width, hidden),
                "up": torch.empty(count, width, hidden),
                "down": torch.empty(count, hidden, width),
            }
        )

    def routed(self, x: Tensor, experts: Experts | None = None, noise: float = 0.0) -> tuple[Tensor, Tensor]:
        """`[N, H]` -> weighted sum of the chosen experts `[N, H]`, and their ids `[N, k]`."""
        gate, up, down = experts or self.stacked()
        ids, weights = self.gate(x, noise)
        out = torch.zeros_like(x)
        for expert in range(gate.shape[0]):
            rows, slot = (ids == expert).nonzero(as_tuple=True)
            inner = x[rows]
            inner = F.silu(inner @ gate[expert].T) * (inner @ up[expert].T)
            out = out.index_add(0, rows, (inner @ down[expert].T) * weights[rows, slot, None])
        return out, ids

    def stacked(self) -> Experts:
        """The layer's own routed experts."""
        return Experts(self.experts["gate"], self.experts["up"], self.experts["down"])


class Parts(NamedTuple):
    """One layer's output on `[N, H]` rows: all but the routed experts, the routed experts, and the ids `[N, k]`."""

    base: Tensor
    routed: Tensor | None
    ids: Tensor | None


class DecoderLayer(nn.Module):
    """Attention and MLP, each with its norm, on one residual stream."""

    def __init__(self, config: DemoConfig, index: int) -> None:
        super().__init__()
        self.is_moe = index >= config.first_k_dense_replace
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: nn.Module = MoE(config) if self.is_moe else DenseMLP(config.hidden_size, config.intermediate_size)

    def parts(self, x: Tensor, experts: Experts | None = None, rows: Tensor | None = None, noise: float = 0.0) -> Parts:
        """`[B, T, H]` -> parts of the output for `rows` (indices into B*T; all when None)."""
        x = (x + self.self_attn(self.input_layernorm(x))).flatten(0, 1)
        if rows is not None:
            x = x[rows]
        normed = self.post_attention_layernorm(x)
        if not isinstance(self.mlp, MoE):
            return Parts(x + self.mlp(normed), None, None)
        return Parts(x + self.mlp.shared_experts(normed), *self.mlp.routed(normed, experts, noise))

    def forward(self, x: Tensor, experts: Experts | None = None) -> Tensor:
        """`[B, T, H]` -> `[B, T, H]`."""
        base, routed, _ = self.parts(x, experts)
        return (base if routed is None else base + routed).view(x.shape)


class Body(nn.Module):
    """Embedding, layers and final norm; separate from the head only so that tensor names match Hugging Face's."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class DemoModel(nn.Module):
    """Glm4MoeForCausalLM as transformers and vLLM compute it, in float32."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def layers(self) -> list[DecoderLayer]:
        """Decoder layers, typed."""
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]

    def forward(self, tokens: Tensor, experts: Mapping[int, Experts] | None = None) -> Tensor:
        """Tokens `[B, T]` -> logits `[B, T, vocab]`; `experts` replaces the routed experts of the layers it names."""
        x = self.model.embed_tokens(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, None if experts is None else experts.get(index))
        return self.head(x)

    def head(self, x: Tensor) -> Tensor:
        """Hidden states `[..., H]` -> logits `[..., vocab]`."""
        out: Tensor = self.lm_head(self.model.norm(x))
        return out

    def experts(self) -> dict[int, Experts]:
        """Routed experts by layer index; detached views, so writing into them changes the model."""
        moe = {index: layer.mlp for index, layer in enumerate(self.layers)}
        return {
            index: Experts(*(tensor.detach() for tensor in mlp.stacked()))
            for index, mlp in moe.items()
            if isinstance(mlp, MoE)
        }

    @torch.no_grad()
    def logits(self, token_ids: Sequence[int], experts: Mapping[int, Experts] | None = None) -> Tensor:
        """Token ids of length T -> logits `[T, vocab]`; row t predicts token t + 1."""
        out: Tensor = self(torch.tensor([list(token_ids)]), experts)
        return out[0]

    @torch.no_grad()
    def logprobs(
        self, prompt: Sequence[int], answer: Sequence[int], experts: Mapping[int, Experts] | None = None
    ) -> Tensor:
        """Log-probability `[len(answer)]` of each answer token after the prompt and the tokens before it."""
        logits = self.logits([*prompt, *answer], experts)[len(prompt) - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.tensor(list(answer))[:, None])[:, 0]

    @torch.no_grad()
    def greedy(
        self, prompt: Sequence[int], eos: int, limit: int = 96, experts: Mapping[int, Experts] | None = None
    ) -> list[int]:
        """Greedy continuation without the final `eos`."""
        answer: list[int] = []
        while len(answer) < limit:
            token = int(self.logits([*prompt, *answer], experts)[-1].argmax())
            if token == eos:
                break
            answer.append(token)
        return answer


def to_hf_tensors(model: DemoModel) -> dict[str, Tensor]:
    """Tensors under Hugging Face names, one per expert and projection; BF16, the router float32."""
    out: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        head, found, projection = name.partition(".experts.")
        if found:
            for expert, weight in enumerate(tensor.bfloat16()):
                out[f"{head}.experts.{expert}.{projection}_proj.weight"] = weight.contiguous()
        else:
            out[name] = tensor.float().clone() if ".mlp.gate." in name else tensor.bfloat16()
    return out


def from_hf_tensors(config: DemoConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 state dict of a `DemoModel`; inverse of `to_hf_tensors` up to rounding."""
    state = {name: tensor.float() for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(config.first_k_dense_replace, config.num_hidden_layers):
        prefix = f"model.layers.{layer}.mlp.experts"
        for projection in Experts._fields:
            names = [f"{prefix}.{expert}.{projection}_proj.weight" for expert in range(config.n_routed_experts)]
            state[f"{prefix}.{projection}"] = torch.stack([tensors[name].float() for name in names])
    return state


def load(folder: Path) -> DemoModel:
    """Read a checkpoint folder in Hugging Face layout into a float32 model."""
    config = DemoConfig.from_hf(json.loads((folder / "config.json").read_text()))
    model = DemoModel(config)
    model.load_state_dict(from_hf_tensors(config, load_file(folder / "model.safetensors")))
    return model.eval()


def save(model: DemoModel, folder: Path, eos: int, pad: int) -> None:
    """Write `model.safetensors`, `config.json` and `generation_config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_hf_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    generation = {"do_sample": False, "eos_token_id": eos, "pad_token_id": pad}
    for name, content in (("config.json", model.config.to_hf(eos, pad)), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
