"""The backends that can be timed: those of the engine, and the kernel of exllamav3 alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

import torch

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench_kernels.grouped_gemm import method_for
from glm53_exl3.bench_kernels.layers import Batch
from glm53_exl3.bench_kernels.machine import free_bytes
from glm53_exl3.bench_kernels.settings import BARE, DECODED
from glm53_exl3.bench_kernels.timing import Call
from glm53_exl3.kernels.accuracy import TOLERANCE
from glm53_exl3.kernels.exllamav3.kernel import ExllamaKernel
from glm53_exl3.kernels.interface import FixedWeights, MoEKernel, PackedLayer
from glm53_exl3.kernels.native.kernel import NativeKernel
from glm53_exl3.kernels.reference import ReferenceKernel
from glm53_exl3.kernels.select import build_kernel
from glm53_exl3.kernels.settings import Backend as EngineBackend
from glm53_exl3.kernels.settings import Decode, KernelSettings

REFERENCE: Final = "reference"

#: Prepares one call from the number of a layer and a batch.
Prepare = Callable[[int, Batch], Call]


class Built(NamedTuple):
    """A backend on its layers; `detail` says how it was built, `is_compared` whether its outputs are to be right."""

    prepare: Prepare
    detail: str
    is_compared: bool = True


@dataclass(frozen=True)
class Backend:
    """A way to run a layer.

    Attributes:
        name: as `--backend` has it.
        build: from layers of one shape, the largest batch and the experts a token; it may refuse with a KernelError.
        captured: whether a CUDA graph can hold its calls.
        tolerance: largest error that is right.
    """

    name: str
    build: Callable[[Sequence[PackedLayer], int, int], Built]
    captured: bool
    tolerance: float = TOLERANCE


def engine_backend(name: EngineBackend) -> Backend:
    """A backend as the engine calls it, output in bf16 included."""

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        settings = KernelSettings(backend=name)
        kernels = [
            build_kernel(
                FixedWeights(layer),
                torch.bfloat16,
                settings,
                captures_graphs=True,
                max_tokens=max_tokens,
                top_k=top_k,
            )
            for layer in layers
        ]
        first = kernels[0]
        scratch = f", {first.rows} tokens a launch" if isinstance(first, ExllamaKernel | NativeKernel) else ""
        return Built(_of_kernels(kernels), f"the whole call of the plugin{scratch}")

    return Backend(name, build, captured=True)


def reference_backend(device: torch.device) -> Backend:
    """The reference in torch, with its default of decoding at load where that leaves half of the free memory."""
    # As the engine has it; see build_kernel.
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        dense = dtype.itemsize * sum(
            one.num_experts * one.suh.shape[1] * one.svh.shape[1]
            for layer in layers
            for one in (layer.gate, layer.up, layer.down)
        )
        decode: Decode = "load" if 2 * dense <= free_bytes(device) else "call"
        when = "once, before the clock starts" if decode == "load" else "in each call, for want of memory"
        kernels = [ReferenceKernel(layer, dtype, decode) for layer in layers]
        return Built(_of_kernels(kernels), f"weights decoded {when}; {str(dtype).removeprefix('torch.')} products")

    # On a GPU its weights are rounded to bf16 as well.
    return Backend(REFERENCE, build, captured=False, tolerance=TOLERANCE if device.type == "cpu" else 2 * TOLERANCE)


def bare_backend() -> Backend:
    """The kernel of exllamav3 without what the plugin does around it."""

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        from glm53_exl3.bench_kernels.bare_exl3_moe import BareExl3Moe

        scratch: list[torch.Tensor] = []
        kernels = [BareExl3Moe(layer, max_tokens, scratch) for layer in layers]
        detail = f"the kernel alone, {kernels[0].rows} tokens a launch; cast, sorted and zeroed before the clock starts"
        return Built(lambda number, batch: kernels[number].prepare(batch), detail)

    return Backend(BARE, build, captured=True)


def decoded_backend() -> Backend:
    """Decoding to 16 bits and dense products, what kernels that decode in their products compete with."""

    def build(layers: Sequence[PackedLayer], max_tokens: int, top_k: int) -> Built:
        from glm53_exl3.bench_kernels.decoded_gemm import DecodedGemm, buffer_bytes

        device = layers[0].gate.device
        method = method_for(device)
        grouped = method == "torch._grouped_mm" and 2 * buffer_bytes(layers[0]) <= free_bytes(device)
        buffer: list[torch.Tensor] = []
        kernels = [DecodedGemm(layer, buffer, grouped=grouped) for layer in layers]
        products = f"{method}, outputs mean nothing" if grouped else "a cuBLAS product an expert"
        detail = f"exllamav3's reconstruct and Hadamards, {products}; cast and sorted before the clock starts"
        return Built(lambda number, batch: kernels[number].prepare(batch), detail, is_compared=not grouped)

    return Backend(DECODED, build, captured=True)


def _of_kernels(kernels: Sequence[MoEKernel]) -> Prepare:
    def prepare(number: int, batch: Batch) -> Call:
        kernel = kernels[number]
        return Call(lambda: kernel(batch.x, batch.ids, batch.weights))

    return prepare


def known_backends(device: torch.device) -> dict[str, Backend]:
    """All backends that a kind of device can have, in the order of the table; the reference last."""
    found: dict[str, Backend] = {}
    if device.type == "cuda":
        for name in get_args(EngineBackend):
            if name not in ("auto", REFERENCE):
                found[name] = engine_backend(name)
        found[BARE] = bare_backend()
        found[DECODED] = decoded_backend()
    found[REFERENCE] = reference_backend(device)
    return found


def choose(asked: Iterable[str] | None, known: Mapping[str, Backend], device: str) -> list[Backend]:
    """The backends to time.

    Args:
        asked: names; None for all.
        known: of this device.
        device: its type, for messages.

    Raises:
        BenchError: `kernel-bench-backend`, for a name that this device does not have.
    """
    if asked is None:
        return list(known.values())
    chosen: list[Backend] = []
    for name in asked:
        if name not in known:
            raise BenchError(
                "kernel-bench-backend",
                f"no backend {name} on {device}",
                expected=" or ".join(known),
                hint=f"--backend {next(iter(known))}",
            )
        chosen.append(known[name])
    return chosen
