"""Which layers of a DFlash draft are FP8 when it is quantized while it is loaded, and if its context K/V are right.

Model, quantization and loading are vLLM's. Replaced are the kernels, which a CPU does not have: the FP8 matrix product,
the rounding of a weight to FP8, the RMS norm, attention and the MLP's activation.
"""

from __future__ import annotations

import interpreted  # isort: skip

import tempfile
import types
from typing import Any

import torch
from transformers import Qwen3Config
from vllm import _custom_ops
from vllm.config import CompilationConfig, VllmConfig, get_current_vllm_config, set_current_vllm_config
from vllm.config.compilation import CompilationMode
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import fp8 as on_disk
from vllm.model_executor.layers.quantization.online import fp8 as online
from vllm.model_executor.model_loader.base_loader import finalize_layerwise_processing
from vllm.model_executor.models import qwen2, qwen3_dflash
from vllm.model_executor.models.qwen3_dflash2 import DFlash2Qwen3ForCausalLM

_BF16 = torch.bfloat16
_HIDDEN, _HEADS, _KV_HEADS, _HEAD, _INTERMEDIATE, _VOCABULARY, _LAYERS, _TOKENS = 64, 4, 2, 32, 96, 128, 5, 7
_EPS = 1e-6
_TARGET_LAYERS = [5, 14, 24, 33, 42]
_DFLASH2 = {"conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}


class Cache(torch.nn.Module):
    """Stands for Attention, of which a draft's weights know nothing."""

    def __init__(self, *args: Any, prefix: str, **kwargs: Any) -> None:
        super().__init__()
        self.layer_name = prefix


class Fp8Product:
    """The matrix product with a weight [in, out] in FP8; what it keeps in FP8 is exact, so only the weight rounds."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def process_weights_after_loading(self, layer: Any) -> None:
        pass

    def apply_weights(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = layer.weight.float() * layer.weight_scale.float()
        product = x.float() @ weight
        return (product if bias is None else product + bias.float()).to(x.dtype)


def rounded(weight: torch.Tensor, scale: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return (weight.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def normalized(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    out.copy_((x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight)


def draft_config(extra: dict[str, Any]) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=_VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        head_dim=_HEAD,
        max_position_embeddings=256,
        rms_norm_eps=_EPS,
        dflash_config={"target_layer_ids": _TARGET_LAYERS, "mask_token_id": 3, **extra},
    )


def given(config: Qwen3Config, folder: str) -> Any:
    """What the draft reads of a server's configuration with "quantization": "fp8" in the speculative part."""
    draft = types.SimpleNamespace(
        hf_config=config,
        hf_overrides={},
        quantization="fp8",
        quantization_config=None,
        dtype=_BF16,
        model=folder,
        revision=None,
    )
    target = types.SimpleNamespace(
        dtype=_BF16,
        get_vocab_size=lambda: _VOCABULARY,
        get_total_num_hidden_layers=lambda: 45,
        get_num_layers=lambda parallel: 45,
    )
    return types.SimpleNamespace(
        model_config=target,
        speculative_config=types.SimpleNamespace(draft_model_config=draft, num_speculative_tokens=7),
        load_config=types.SimpleNamespace(download_dir=None),
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
        parallel_config=None,
        quant_config=None,
    )


def checkpoint() -> dict[str, torch.Tensor]:
    """The weights of a draft as they lie on disk, all dense."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).to(_BF16)

    weights = {"fc.weight": drawn(_HIDDEN, _HIDDEN * len(_TARGET_LAYERS))}
    weights["hidden_norm.weight"] = 1 + drawn(_HIDDEN)
    for index in range(_LAYERS):
        layer = f"layers.{index}."
        weights[layer + "self_attn.q_proj.weight"] = drawn(_HEADS * _HEAD, _HIDDEN)
        weights[layer + "self_attn.k_proj.weight"] = drawn(_KV_HEADS * _HEAD, _HIDDEN)
        weights[layer + "self_attn.v_proj.weight"] = drawn(_KV_HEADS * _HEAD, _HIDDEN)
        weights[layer + "self_attn.o_proj.weight"] = drawn(_HIDDEN, _HEADS * _HEAD)
        weights[layer + "mlp.gate_proj.weight"] = drawn(_INTERMEDIATE, _HIDDEN)
        weights[layer + "mlp.up_proj.weight"] = drawn(_INTERMEDIATE, _HIDDEN)
        weights[layer + "mlp.down_proj.weight"] = drawn(_HIDDEN, _INTERMEDIATE)
    return weights


def expected_context(weights: dict[str, torch.Tensor], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K (before its norm) and V of every layer: the normalized states times the weights of the checkpoint."""
    x = states.double()
    x = x / (x.square().mean(-1, keepdim=True) + _EPS).sqrt() * weights["hidden_norm.weight"].double()

    def projected(name: str) -> torch.Tensor:
        layers = [x @ weights[f"layers.{i}.self_attn.{name}.weight"].double().T for i in range(_LAYERS)]
        return torch.stack(layers).view(_LAYERS, _TOKENS, _KV_HEADS, _HEAD)

    return projected("k_proj"), projected("v_proj")


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Root mean square of the difference in units of that of the expected values."""
    return float((found.double() - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def context(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, Any]:
    states = torch.randn(_TOKENS, _HIDDEN, generator=torch.Generator().manual_seed(1)).to(_BF16)
    try:
        k, v = model.model._project_context_kv(states, _TOKENS, _LAYERS, _KV_HEADS, _HEAD)
    except RuntimeError as error:
        return {"error": str(error), "k": None, "v": None}
    expected_k, expected_v = expected_context(weights, states)
    return {"error": None, "k": distance(k, expected_k), "v": distance(v, expected_v)}


def formats(model: Any) -> dict[str, str]:
    """For each kind of linear layer, the type of its weights; "mixed" where they differ."""
    found: dict[str, set[str]] = {}
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind in {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "fc"}:
            dense = isinstance(module.quant_method, UnquantizedLinearMethod)
            assert dense == (module.weight.dtype == _BF16), name
            found.setdefault(kind, set()).add(str(module.weight.dtype))
    return {kind: dtypes.pop() if len(dtypes) == 1 else "mixed" for kind, dtypes in found.items()}


def loaded(kind: type, extra: dict[str, Any], folder: str) -> dict[str, Any]:
    configuration = given(draft_config(extra), folder)
    get_current_vllm_config().speculative_config = configuration.speculative_config
    model = kind(vllm_config=configuration)
    weights = checkpoint()
    model.load_weights(weights.items())
    finalize_layerwise_processing(model, configuration.model_config)
    return {"formats": formats(model), "context": context(model, weights)}


def quantized_on_disk(folder: str) -> dict[str, bool]:
    """Whether the layers of a draft, whose configuration says that its checkpoint is FP8, expect FP8."""
    config = draft_config({})
    config.quantization_config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    model = qwen3_dflash.DFlashQwen3ForCausalLM(vllm_config=given(config, folder))
    layer = model.model.layers[0]
    modules = {"qkv_proj": layer.self_attn.qkv_proj, "o_proj": layer.self_attn.o_proj, "fc": model.model.fc}
    return {kind: module.weight.dtype == torch.float8_e4m3fn for kind, module in modules.items()}


def measured(folder: str) -> dict[str, Any]:
    on_disk.init_fp8_linear_kernel = online.init_fp8_linear_kernel = lambda **kwargs: Fp8Product()
    online.ops = types.SimpleNamespace(scaled_fp8_quant=rounded)
    qwen2.SiluAndMul = torch.nn.Identity
    qwen3_dflash.Attention = Cache
    _custom_ops.rms_norm = normalized
    return {
        "dflash": loaded(qwen3_dflash.DFlashQwen3ForCausalLM, {}, folder),
        "dflash2": loaded(DFlash2Qwen3ForCausalLM, _DFLASH2, folder),
        "on_disk": quantized_on_disk(folder),
    }


def main() -> dict[str, Any]:
    torch.set_default_dtype(_BF16)
    current = VllmConfig()
    with (
        tempfile.NamedTemporaryFile() as rendezvous,
        tempfile.TemporaryDirectory() as folder,
        set_current_vllm_config(current),
        torch.no_grad(),
    ):
        init_distributed_environment(1, 0, f"file://{rendezvous.name}", 0, "gloo")
        initialize_model_parallel(1, 1)
        current.model_config = types.SimpleNamespace(dtype=_BF16, head_dtype=_BF16)
        return measured(folder)


if __name__ == "__main__":
    interpreted.main(main)
