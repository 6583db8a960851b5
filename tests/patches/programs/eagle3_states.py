"""The states that Glm5Next returns for an EAGLE3 draft, beside mHC streams computed without any deferral.

Layers, their order and the states are vLLM's; attention and MLP are replaced by small functions, since neither the
kernels of KDA nor those of sparse MLA run on a CPU and the states are none of their business.
"""

from __future__ import annotations

import interpreted  # isort: skip

import hashlib
import tempfile
import types
from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
    get_eagle3_aux_layers_from_config,
    set_eagle3_aux_hidden_state_layers,
)

try:
    import vllm.models.glm5next.common.model as glm
except ImportError:
    import vllm.models.glm5next.nvidia.model as glm

_LAYERS, _STREAMS, _HIDDEN, _TOKENS, _EPS, _SINKHORN = 45, 4, 32, 5, 1e-6, 20
_TARGET_LAYERS = [5, 14, 24, 33, 42]
_BF16 = torch.bfloat16


class Sublayer(torch.nn.Module):
    """Stands for attention and MLP. It normalizes first, so that it does not matter whether mHC did so already.

    Each is larger than the one before, so that the last ones are always a good part of the streams.
    """

    built = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        Sublayer.built += 1
        generator = torch.Generator().manual_seed(Sublayer.built)
        self.gain = 1.1**Sublayer.built
        self.mixing = (torch.randn(_HIDDEN, _HIDDEN, generator=generator) / _HIDDEN**0.5).to(_BF16)
        self.o_proj = types.SimpleNamespace(reduce_results=True)

    def forward(self, x: Any = None, hidden_states: Any = None, positions: Any = None, **kwargs: Any) -> torch.Tensor:
        return self.of(x if hidden_states is None else hidden_states)

    def of(self, given: torch.Tensor) -> torch.Tensor:
        x = given.double()
        x = x / x.square().mean(-1, keepdim=True).sqrt()
        return (self.gain * torch.tanh(x @ self.mixing.double())).to(_BF16)


def text_config() -> Any:
    """The real model's layers and streams with a small hidden size."""
    kind = getattr(glm, "Glm5NextTextConfig", None) or glm.Glm5NextConfig
    kinds = ["linear_attention" if index % 4 != 3 else "deepseek_sparse_attention" for index in range(_LAYERS)]
    return kind(
        num_hidden_layers=_LAYERS,
        hidden_size=_HIDDEN,
        intermediate_size=64,
        vocab_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        hc_mult=_STREAMS,
        hc_sinkhorn_iters=_SINKHORN,
        hc_eps=_EPS,
        rms_norm_eps=_EPS,
        layer_types=kinds,
        mlp_layer_types=["dense"] * _LAYERS,
        mhc=True,
        mla_use_nope=True,
        logit_scale=1.0,
        pad_token_id=None,
    )


def build() -> Any:
    """Glm5NextForCausalLM with weights for its streams and the replaced sublayers."""
    glm.Glm5NextLinearAttention = glm.Glm5NextMLAAttention = glm.Glm5NextMLP = Sublayer
    config = text_config()
    model_config = types.SimpleNamespace(hf_config=config, hf_text_config=config)
    given = types.SimpleNamespace(
        model_config=model_config,
        quant_config=None,
        cache_config=None,
        kernel_config=types.SimpleNamespace(enable_jit_warmup=False),
        parallel_config=types.SimpleNamespace(use_sequence_parallel_moe=False),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=_TOKENS),
    )
    model = glm.Glm5NextForCausalLM(vllm_config=given)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if ".hc_" in name:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(drawn * 0.05 if name.endswith("_fn") else drawn * 0.7 + 0.7)
    for module in model.modules():  # The kernels for a CPU are compiled; a tree of sources has none.
        if hasattr(module, "forward_native"):
            module._forward_method = module.forward_native
    model.model.norm = torch.nn.Identity()
    return model.to(torch.float32)


class Streams:
    """One mHC mixing as its paper and transformers define it, in float64 but for what the model keeps in bfloat16."""

    def __init__(self, layer: Any, part: str) -> None:
        self.weights = getattr(layer, f"hc_{part}_fn").detach().double()
        self.base = getattr(layer, f"hc_{part}_base").detach().double()
        self.scale = getattr(layer, f"hc_{part}_scale").detach().double()

    def apply(self, streams: torch.Tensor, sublayer: Sublayer) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, streams, hidden]: collapse, run the sublayer, spread its output over the mixed streams.

        Returned beside it is the sum that is right in a model without streams.
        """
        flat = streams.double().flatten(1)
        mixes = (flat / (flat.square().mean(1, keepdim=True) + _EPS).sqrt()) @ self.weights.T
        pre, post, comb = mixes.split([_STREAMS, _STREAMS, _STREAMS**2], dim=1)
        pre_base, post_base, comb_base = self.base.split([_STREAMS, _STREAMS, _STREAMS**2])
        pre = torch.sigmoid(pre * self.scale[0] + pre_base) + _EPS
        post = 2 * torch.sigmoid(post * self.scale[1] + post_base)
        comb = (comb * self.scale[2] + comb_base).view(-1, _STREAMS, _STREAMS)
        comb = doubly_stochastic(torch.softmax(comb, dim=2) + _EPS)
        collapsed = (pre[:, :, None] * streams.double()).sum(1).to(_BF16)
        output = sublayer.of(collapsed).double()[:, None, :]
        mixed = torch.einsum("tij,tih->tjh", comb, streams.double())
        return (mixed + post[:, :, None] * output).to(_BF16), streams.double() + output


def doubly_stochastic(mixing: torch.Tensor) -> torch.Tensor:
    mixing = mixing / (mixing.sum(1, keepdim=True) + _EPS)
    for _ in range(_SINKHORN - 1):
        mixing = mixing / (mixing.sum(2, keepdim=True) + _EPS)
        mixing = mixing / (mixing.sum(1, keepdim=True) + _EPS)
    return mixing


def undeferred(layers: Any, embeddings: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The mean over the streams before each layer and, last, after all; and that of output plus residual."""
    streams = embeddings[:, None, :].repeat(1, _STREAMS, 1)
    means, sums = [embeddings.double()], [embeddings.double()]
    for layer in layers:
        streams, _ = Streams(layer, "attn").apply(streams, layer.self_attn)
        streams, added = Streams(layer, "ffn").apply(streams, layer.mlp)
        means.append(streams.double().mean(1))
        sums.append(added.mean(1))
    return means, sums


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference in units of the expected values' root mean square."""
    return float((found.double() - expected).abs().max() / expected.square().mean().sqrt())


def run(model: Any, embeddings: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor] | None]:
    positions = torch.arange(_TOKENS)
    answer = model(None, positions, None, embeddings.clone())
    return answer if isinstance(answer, tuple) else (answer, None)


def speculation() -> Any:
    """What a DFlash2 draft's configuration says about its target."""
    draft = types.SimpleNamespace(dflash_config={"target_layer_ids": _TARGET_LAYERS})
    return types.SimpleNamespace(draft_model_config=types.SimpleNamespace(hf_config=draft))


def compared(model: Any, embeddings: torch.Tensor, layers: Sequence[int]) -> dict[str, Any]:
    """States of `layers`, against the streams before them; to show what would be noticed, against wrong ones too."""
    means, sums = undeferred(model.model.layers, embeddings)
    model.set_aux_hidden_state_layers(tuple(layers))
    final, states = run(model, embeddings)
    assert states is not None
    return {
        "shapes": [list(state.shape) for state in states],
        "dtypes": [str(state.dtype) for state in states],
        "distances": [distance(state, means[layer]) for state, layer in zip(states, layers, strict=True)],
        "distances_to_others": [
            min(distance(state, mean) for index, mean in enumerate(means) if index != layer)
            for state, layer in zip(states, layers, strict=True)
        ],
        "distances_to_sums": [distance(state, sums[layer]) for state, layer in zip(states, layers, strict=True)],
        "final": distance(final, means[_LAYERS]),
    }


def sharded(model: Any, embeddings: torch.Tensor) -> list[torch.Tensor]:
    """States under sequence parallelism whose shards are padded to eight rows; one rank holds them all."""
    padded = lambda x: torch.nn.functional.pad(x, (0, 0, 0, 8 - x.shape[0]))  # noqa: E731
    glm.sp_shard = glm.sp_reduce_scatter = padded
    glm.sp_all_gather = lambda x: x
    for module in (model.model, *model.model.layers):
        module.is_sequence_parallel = True
    _, states = run(model, embeddings)
    return states or []


def wrapper(model: Any) -> Any:
    """The multimodal model around it, without its vision tower."""
    outer = object.__new__(glm.Glm5NextForConditionalGeneration)
    torch.nn.Module.__init__(outer)
    outer.language_model = model
    return outer


def refusal(model: Any) -> str:
    try:
        set_eagle3_aux_hidden_state_layers(model, speculation())
    except RuntimeError as error:
        return str(error)
    return ""


def measured() -> dict[str, Any]:
    model = build()
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(_TOKENS, _HIDDEN, generator=generator).to(_BF16)
    plain, none = run(model, embeddings)
    outer = wrapper(model)
    found: dict[str, Any] = {
        "supports": [supports_eagle3(model), supports_eagle3(outer)],
        "refusals": [refusal(model), refusal(outer)],
        "plain": {
            "states": none,
            "digest": hashlib.sha256(plain.view(torch.int16).numpy().tobytes()).hexdigest(),
        },
    }
    if not all(found["supports"]):
        return found
    found["layers"] = list(get_eagle3_aux_layers_from_config(speculation()) or ())
    found["default"] = list(outer.get_eagle3_default_aux_hidden_state_layers())
    final, states = run(model, embeddings)  # refusal() has set the layers through the wrapper.
    assert states is not None
    found["unchanged"] = torch.equal(final, plain)
    found["draft"] = compared(model, embeddings, found["layers"])
    found["ends"] = compared(model, embeddings, [0, 1, _LAYERS - 1, _LAYERS])
    outer.set_aux_hidden_state_layers(tuple(found["layers"]))
    gathered = sharded(model, embeddings)
    found["sharded"] = {
        "shapes": [list(state.shape) for state in gathered],
        # Padded rows change how a CPU adds up the products of the others.
        "distances": [distance(one, other) for one, other in zip(gathered, states, strict=True)],
    }
    return found


def main() -> dict[str, Any]:
    with tempfile.NamedTemporaryFile() as rendezvous, set_current_vllm_config(VllmConfig()), torch.inference_mode():
        init_distributed_environment(1, 0, f"file://{rendezvous.name}", 0, "gloo")
        initialize_model_parallel(1, 1)
        return measured()


if __name__ == "__main__":
    interpreted.main(main)
