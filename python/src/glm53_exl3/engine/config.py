"""`Exl3Config`: what vLLM asks about the pack, answered from its inventory."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase

from glm53_exl3.engine.moe_method import Exl3MoEMethod
from glm53_exl3.errors import PackError
from glm53_exl3.format.names import layer_index, parse_expert
from glm53_exl3.format.quantization_config import QUANT_METHOD, parse_quantization_config
from glm53_exl3.pack.files import QUANTIZATION_FILE, SHARD_GLOB, holds_trellis
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.pack.moe_layers import MoELayer

logger = logging.getLogger("vllm.glm53_exl3.engine")


class Exl3Config(QuantizationConfig):
    """Quantization config of a pack whose routed experts are EXL3.

    K and codebook of every layer come from the safetensors headers, read in `maybe_update_config` before vLLM
    makes a parameter; the `quantization_config` is only cross-checked.

    Attributes:
        layers: EXL3 layers by layer index.
        plain_layers: layers whose routed experts are stored as ordinary weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers: dict[int, MoELayer] = {}
        self.plain_layers: frozenset[int] = frozenset()

    def get_name(self) -> str:
        """Name of the quantization method."""
        return QUANT_METHOD

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Dtypes of activations."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_min_capability(cls) -> int:
        """Oldest GPU: compute capability 8.0, as for exllamav3's kernels."""
        return 80

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Where vLLM looks when `config.json` has no `quantization_config`."""
        return [QUANTIZATION_FILE]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Exl3Config:
        """Check the fields of a `quantization_config`.

        Raises:
            FormatError: a field cannot be meant.
        """
        parse_quantization_config(config)
        return cls()

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Mapping[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Claim EXL3 packs; refuse packs of EXL3 experts that call themselves something else.

        vLLM would hand such a pack to the method it names and fail much later with an unrelated message.

        Raises:
            PackError: `quant-method`.
        """
        stated = hf_quant_cfg.get("quant_method")
        if stated == QUANT_METHOD:
            return QUANT_METHOD
        model = getattr(hf_config, "name_or_path", "") or ""
        try:
            directory = local_directory(model, None)
        except PackError:
            return None
        if holds_trellis(directory):
            raise PackError(
                "quant-method",
                f"{directory} holds EXL3 experts, but quantization_config.quant_method is {stated!r}",
                expected=repr(QUANT_METHOD),
                found=repr(stated),
                hint=f'write "quant_method": "{QUANT_METHOD}" into the quantization_config of {directory}/config.json',
            )
        return None

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Read the pack's inventory.

        Raises:
            PackError: the pack is not on this machine, or has a fault.
        """
        inventory = read_inventory(local_directory(model_name, revision))
        inventory.require_sound()
        other = next((name for name in inventory.modules if parse_expert(name) is None), None)
        if other is not None:
            raise PackError(
                "linear-unsupported",
                f"{other} is EXL3, and only routed experts can be served from EXL3",
                expected="a pack that keeps everything else at 16 bits",
                hint="use a pack of routed experts only, such as vcruz305/GLM-5.3-Flash-EXL3-K2",
            )
        self.layers = {layer.layer: layer for layer in inventory.layers.values()}
        self.plain_layers = frozenset(inventory.plain_blocks.values())

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Method of one vLLM layer: EXL3 for routed experts, as stored for everything else.

        Raises:
            PackError: `layer-missing`, the pack has no experts for this layer.
        """
        if isinstance(layer, RoutedExperts):
            return self._moe_method(layer, prefix)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None

    def _moe_method(self, layer: RoutedExperts, prefix: str) -> QuantizeMethodBase:
        index = layer_index(prefix)
        if index in self.layers:
            return Exl3MoEMethod(layer.moe_config, self.layers[index], prefix)
        if index in self.plain_layers:
            logger.warning("%s: experts are stored unquantized and run so, at 16 bits a weight", prefix)
            return UnquantizedFusedMoEMethod(layer.moe_config)
        raise PackError(
            "layer-missing",
            f"{prefix} has no routed experts in the pack",
            expected=f"EXL3 experts for layer {index}",
            found=f"layers {sorted(self.layers)}",
            hint="fetch the whole pack, or serve without speculation when this is an MTP layer the pack leaves out",
        )


def local_directory(model: str, revision: str | None) -> Path:
    """Folder of a model: the name itself, or the snapshot of a repository in the Hugging Face cache.

    Raises:
        PackError: `pack-not-local`, also when the snapshot holds files but no shard.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        snapshot = Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise _not_local(model) from error
    # vLLM fetches config.json by itself, and with it makes a snapshot without a single weight.
    if not any(snapshot.glob(SHARD_GLOB)):
        raise _not_local(model)
    return snapshot


def _not_local(model: str) -> PackError:
    return PackError(
        "pack-not-local",
        f"{model} is neither a folder nor in the Hugging Face cache",
        expected="a downloaded pack: its headers decide how vLLM allocates the experts",
        hint=f"hf download {model}",
    )
