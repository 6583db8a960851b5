"""`auto`: the fastest backend that is right, found out on the weights of the first layer of each kind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from glm53_exl3.errors import KernelError
from glm53_exl3.kernels.interface import MoEKernel, PackedLayer
from glm53_exl3.kernels.proof import Trial, fastest, table, try_out

# Below vLLM's logger, whose configuration drops the lines of loggers outside it.
logger = logging.getLogger("vllm.glm53_exl3.kernels")

#: Builds the kernel of a layer by one backend; it may refuse with a KernelError.
Build = Callable[[], MoEKernel]


@dataclass(frozen=True)
class Kind:
    """Layers of one kind are run by the same kernels.

    Attributes:
        device: where they are.
        sizes: hidden, intermediate, local experts, top-k, largest batch.
        bits: of gate, up and down, for people; several where experts differ.
        codebooks: of gate, up and down.
        is_limited: whether SwiGLU has a limit.
    """

    device: torch.device
    sizes: tuple[int, int, int, int, int]
    bits: tuple[str, ...]
    codebooks: tuple[str, ...]
    is_limited: bool

    def __str__(self) -> str:
        hidden, intermediate, experts, top_k, _ = self.sizes
        bits, codebook = "/".join(self.bits), "/".join(dict.fromkeys(self.codebooks))
        return f"hidden {hidden}, intermediate {intermediate}, {experts} experts, top-{top_k}, {codebook}, bits {bits}"


def kind_of(layer: PackedLayer, top_k: int, max_tokens: int) -> Kind:
    """The kind of a layer."""
    parts = (layer.gate, layer.up, layer.down)
    hidden, intermediate = layer.gate.suh.shape[1], layer.gate.svh.shape[1]
    return Kind(
        layer.gate.device,
        (hidden, intermediate, layer.gate.num_experts, top_k, max_tokens),
        tuple(one.rate_text for one in parts),
        tuple(one.codebook for one in parts),
        layer.limit > 0,
    )


class AutomaticKernel:
    """Several kernels of one layer, each for batches of some sizes.

    Args:
        ranges: up to so many tokens, and the kernel for them; the last has no bound.
    """

    def __init__(self, ranges: Sequence[tuple[float, MoEKernel]]) -> None:
        self._ranges = ranges

    @property
    def backend(self) -> str:
        """Names of the backends, for logs."""
        names = [f"{kernel.backend} up to {bound:.0f} tokens" for bound, kernel in self._ranges[:-1]]
        return ", then ".join([*names, self._ranges[-1][1].backend])

    @property
    def keeps_packed_weights(self) -> bool:
        """Always: compiled kernels read them."""
        return True

    def __call__(self, x: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """See :class:`glm53_exl3.kernels.interface.MoEKernel`."""
        tokens = len(x)
        kernel = next(kernel for bound, kernel in self._ranges if tokens <= bound)
        return kernel(x, topk_ids, topk_weights)


#: What was found out about each kind: up to so many tokens, and the backend.
_proven: Final[dict[Kind, list[tuple[float, str]]]] = {}


def build_automatic(
    layer: PackedLayer, builds: Mapping[str, Build], top_k: int, max_tokens: int
) -> AutomaticKernel | MoEKernel:
    """The kernel of one layer, of the backends that its kind is fastest by.

    The first layer of a kind is run by every backend and by the reference; what was found is logged.

    Args:
        layer: packed weights on a GPU.
        builds: backends by name.
        top_k: experts a token.
        max_tokens: largest batch of the engine.

    Raises:
        KernelError: `kernels-wrong`, no backend that runs here is right; the first backend's own, when none runs here.
    """
    kind = kind_of(layer, top_k, max_tokens)
    if kind not in _proven:
        kernels, trials = _prove(layer, builds, top_k, max_tokens, kind)
        _proven[kind] = _require_right(fastest(trials), kind, trials)
    else:
        kernels = {name: builds[name]() for name in {name for _, name in _proven[kind]}}
    ranges = [(bound, kernels[name]) for bound, name in _proven[kind]]
    return ranges[0][1] if len(ranges) == 1 else AutomaticKernel(ranges)


def _prove(
    layer: PackedLayer, builds: Mapping[str, Build], top_k: int, max_tokens: int, kind: Kind
) -> tuple[dict[str, MoEKernel], dict[str, Trial]]:
    begin = time.perf_counter()
    kernels: dict[str, MoEKernel] = {}
    refused: dict[str, KernelError] = {}
    for name, build in builds.items():
        try:
            kernels[name] = build()
        except KernelError as error:
            refused[name] = error
    if not kernels:
        raise next(iter(refused.values()))
    for name, refusal in refused.items():
        logger.warning("%s: no %s kernels: %s", layer.name, name, refusal.what)
    trials = try_out(kernels, layer, top_k, max_tokens)
    wrong = [name for name, trial in trials.items() if not trial.is_right]
    for name in wrong:
        logger.error(
            "%s: the %s kernels compute WRONG outputs on this GPU (error %.1e) and are not used; please report it",
            layer.name,
            name,
            trials[name].error,
        )
    seconds = time.perf_counter() - begin
    logger.info("kernels for %s, tried on %s in %.1f s:\n%s", kind, layer.name, seconds, table(trials))
    return kernels, trials


def _require_right(ranges: list[tuple[float, str]], kind: Kind, trials: Mapping[str, Trial]) -> list[tuple[float, str]]:
    if not ranges:
        found = ", ".join(f"{name} {trial.error:.1e}" for name, trial in trials.items())
        raise KernelError(
            "kernels-wrong",
            f"no backend computes layers of {kind} right on {kind.device}",
            expected="an error below 5e-3 against the reference",
            found=found,
            hint="rebuild the extensions for this GPU (docs/extension.md), and report it; "
            "GLM53_EXL3_KERNEL=reference and GLM53_EXL3_DECODE=call with --enforce-eager are exact and slow",
        )
    return ranges
