"""The load format `glm53_exl3`: routed experts in bulk, everything else through the model as vLLM does it.

vLLM takes every tensor out of a mapped file and hands it through the model to its parameter, in one thread and one
tensor at a time. EXL3 experts need none of that: where each belongs is known from its name, and the bytes of a pack
are those of the parameters. docs/loading.md has the measurements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from vllm.config import replace
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from glm53_exl3.engine.bulk_layers import BulkLayers, bulk_layers
from glm53_exl3.engine.bulk_read import BulkRead
from glm53_exl3.engine.config import local_directory
from glm53_exl3.engine.load_progress import LoadProgress
from glm53_exl3.engine.read_plan import plan_runs
from glm53_exl3.engine.read_targets import iter_pieces, parts_of_layer
from glm53_exl3.engine.rest_stream import RestStream
from glm53_exl3.engine.transfer import Transfer, cuda_transfers
from glm53_exl3.format.names import layer_index
from glm53_exl3.format.tensors import SUH, SVH, TRELLIS
from glm53_exl3.pack.checksums import num_readers
from glm53_exl3.pack.inventory import Inventory, read_inventory, without_collection
from glm53_exl3.pack.moe_layers import MoELayer
from glm53_exl3.pack.safetensors_header import StoredTensor

LOAD_FORMAT: Final = "glm53_exl3"
#: One thread waits for the drive while the other copies, also on a single core.
_FEWEST_READERS: Final = 2

logger = logging.getLogger("vllm.glm53_exl3.engine")


class BulkModelLoader(DefaultModelLoader):
    """Model loader of the load format `glm53_exl3`.

    A model or layer that cannot be loaded in bulk is loaded as vLLM does it by default, with a warning that says why.

    Args:
        load_config: vLLM's. `num_threads` of its extra config is the number of readers.
    """

    def __init__(self, load_config: Any) -> None:
        # What the base class reads it reads as it does without this load format.
        super().__init__(replace(load_config, load_format="auto"))
        self._rest: RestStream | None = None
        self._bulk_parameters: set[str] = set()

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        """Load all weights of a model.

        Raises:
            PackError: the pack has a fault, or a tensor is not what its layer needs.
        """
        started = time.monotonic()
        # The base class logs the time since.
        self.counter_before_loading_weights = time.perf_counter()
        layers = bulk_layers(model)
        _warn_of_refusals(type(model).__name__, layers)
        if not layers.loaders:
            super().load_weights(model, model_config)
            return
        _warn_of_ignored_settings(self.load_config)
        inventory = read_inventory(local_directory(model_config.model, model_config.revision))
        inventory.require_sound()
        parts = [part for loader in layers.loaders for part in parts_of_layer(loader)]
        with without_collection():
            runs = plan_runs(iter_pieces(parts, inventory.tensors))
        device = parts[0].view.device
        drop = _shares_memory(device)
        progress = LoadProgress(_log_line(), started)
        rest = RestStream(_not_in_bulk(inventory, layers), _usage(model), progress.add, drop)
        progress.expect(sum(run.wanted_bytes for run in runs) + rest.used_bytes)
        BulkRead(parts, runs, progress.add, _transfers(device), drop).run(self._readers())
        self._rest, self._bulk_parameters = rest, layers.parameter_names
        try:
            super().load_weights(model, model_config)
        finally:
            self._rest = None
        progress.finish()

    def track_weights_loading(
        self, model: torch.nn.Module, loaded_weights: set[str] | None, *arguments: Any, **options: Any
    ) -> None:
        """Count what was loaded in bulk as loaded; the base class calls this when asked to with an extra config."""
        loaded = None if loaded_weights is None else loaded_weights | self._bulk_parameters
        super().track_weights_loading(model, loaded, *arguments, **options)

    def _get_weights_iterator(self, source: Any) -> Iterable[tuple[str, torch.Tensor]]:
        # Also called outside `load_weights`, to load weights anew into a running engine, and for weights beside the
        # model's own.
        if self._rest is None or source.subfolder or source.prefix:
            iterator: Iterable[tuple[str, torch.Tensor]] = super()._get_weights_iterator(source)
            return iterator
        rest, self._rest = self._rest, None
        return rest

    def _readers(self) -> int:
        wanted = self.load_config.model_loader_extra_config.get("num_threads")
        return int(wanted) if wanted else max(_FEWEST_READERS, num_readers())


def _not_in_bulk(inventory: Inventory, layers: BulkLayers) -> list[StoredTensor]:
    """Tensors that the model is to be given.

    Left out are the experts loaded in bulk, those of other ranks among them, and those of layers that `config.json`
    places in another model or rank, as the MTP layer while the target loads. An unknown layer is the model's to judge.
    """
    blocks = {loader.layer.block for loader in layers.loaders}
    shape = inventory.shape
    if shape is not None:
        known = {*shape.moe_layers, *shape.mtp_layers}.difference(layers.refused_layers)
        blocks |= {layer.block for layer in inventory.layers.values() if layer.layer in known}
    left_out = {name for block in blocks for name in _expert_tensors(inventory.layers[block])}
    return [tensor for tensor in inventory.tensors.values() if tensor.name not in left_out]


def _expert_tensors(layer: MoELayer) -> Iterator[str]:
    for projection, spec in layer.projections.items():
        markers = () if spec.codebook == "3inst" else (spec.codebook,)
        for expert in range(layer.num_experts):
            for suffix in (TRELLIS, SUH, SVH, *markers):
                yield layer.tensor_name(expert, projection, suffix)


def _usage(model: torch.nn.Module) -> Callable[[str], bool]:
    """Whether a model is going to read a tensor, judged by the layer in its name: a guess, for reading ahead only."""
    held = {layer_index(name) for name, _ in model.named_parameters()}
    unused = getattr(model, "is_unused_checkpoint_weight", None)

    def is_used(name: str) -> bool:
        index = layer_index(name)
        return (index is None or index in held) and not (unused is not None and unused(name))

    return is_used


def _transfers(device: torch.device) -> Callable[[], Transfer] | None:
    return None if device.type == "cpu" else cuda_transfers(device)


def _shares_memory(device: torch.device) -> bool:
    """Whether the page cache takes memory from the GPU, and no other rank is about to read the same pages."""
    if device.type != "cuda" or _num_ranks() > 1:
        return False
    return bool(torch.cuda.get_device_properties(device).is_integrated)


def _num_ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _log_line() -> Callable[[str], None]:
    """Where progress goes: one of several ranks speaks for all."""
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    return logger.info if first else logger.debug


def _warn_of_refusals(model: str, layers: BulkLayers) -> None:
    if not layers.loaders and not layers.refused:
        logger.warning("%s has no EXL3 experts: it loads as vLLM does by default, slower than in bulk", model)
    for reason, name in layers.refused.items():
        logger.warning("%s and layers like it load as vLLM does by default, slower than in bulk: %s", name, reason)


def _warn_of_ignored_settings(load_config: Any) -> None:
    strategy = load_config.safetensors_load_strategy
    if strategy not in (None, "lazy"):
        logger.warning("--safetensors-load-strategy %s has no effect with --load-format %s", strategy, LOAD_FORMAT)
    if load_config.model_loader_extra_config.get("enable_multithread_load"):
        logger.warning("enable_multithread_load has no effect with --load-format %s", LOAD_FORMAT)
