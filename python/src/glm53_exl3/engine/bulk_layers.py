"""Which layers of a model can be loaded in bulk, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import torch
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

from glm53_exl3.engine.loader import ExpertLoader
from glm53_exl3.engine.moe_method import Exl3MoEMethod

_DEVICES: Final = ("cpu", "cuda")


@dataclass
class BulkLayers:
    """The EXL3 layers of a model.

    Attributes:
        loaders: of the layers that can be loaded in bulk.
        parameter_names: of the parameters of these layers.
        refused: module name by reason, for one layer with each.
        refused_layers: index of every layer that cannot.
    """

    loaders: list[ExpertLoader] = field(default_factory=list)
    parameter_names: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    refused_layers: set[int] = field(default_factory=set)


def bulk_layers(model: torch.nn.Module) -> BulkLayers:
    """Look at every EXL3 layer of a model whose parameters exist and hold nothing yet."""
    found = BulkLayers()
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not isinstance(module, RoutedExperts) or not isinstance(method, Exl3MoEMethod):
            continue
        loader = method.expert_loader
        reason = "it is loaded already" if loader is None else _obstacle(module, loader, method.parameter_names)
        if loader is None or reason:
            found.refused.setdefault(reason, name)
            found.refused_layers.add(method.layer.layer)
        else:
            found.loaders.append(loader)
            found.parameter_names.update(f"{name}.{parameter}" for parameter in method.parameter_names)
    return found


def _obstacle(module: torch.nn.Module, loader: ExpertLoader, names: Iterable[str]) -> str:
    """Why bytes cannot go straight into the parameters of a layer; empty when they can."""
    if sorted(loader.experts) != list(range(loader.sizes.num_experts)):
        return "ranks hold copies of experts, as with --enable-eplb"
    if loader.layer.is_mixed:
        return "its experts differ in bits"
    memory = {view.untyped_storage().data_ptr() for view in loader.views.values() if isinstance(view, torch.Tensor)}
    for name in names:
        parameter = module.get_parameter(name)
        if getattr(getattr(parameter, "weight_loader", None), "func", None) is not loader:
            return "its weight loader was replaced, as when weights are loaded anew into a running engine"
        if parameter.data.untyped_storage().data_ptr() not in memory:
            return "its parameters were moved, as with --cpu-offload-gb"
        if parameter.device.type not in _DEVICES:
            return f"its parameters are on {parameter.device}"
    return ""
