"""EXL3 linears of a pack, put together from the tensors that belong to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from glm53_exl3.errors import FormatError, Glm53Error, PackError
from glm53_exl3.format import tensors as fmt
from glm53_exl3.format.codebooks import MARKER_VALUES, Codebook
from glm53_exl3.format.names import split_tensor
from glm53_exl3.pack.safetensors_header import StoredTensor

_LEGACY: Final = ("su", "sv")
_SUFFIXES: Final = frozenset({fmt.TRELLIS, fmt.SUH, fmt.SVH, *MARKER_VALUES, *_LEGACY})
#: Other tensors that a module may have; `weight` beside a trellis means that it is stored twice.
_WEIGHT: Final = "weight"
_REFETCH: Final = "fetch the shard that holds this module again, or the whole pack when its index says the same"


@dataclass(frozen=True)
class LinearModule:
    """One EXL3 linear.

    Attributes:
        name: module name in the checkpoint.
        in_features, out_features: of the weight `[in, out]`.
        bits: bits a weight, from the trellis.
        codebook: from the markers.
        has_bias: whether there is a bias too.
    """

    name: str
    in_features: int
    out_features: int
    bits: int
    codebook: Codebook
    has_bias: bool = False


def exl3_modules(tensors: Iterable[StoredTensor]) -> tuple[dict[str, LinearModule], list[Glm53Error]]:
    """Every module with at least one EXL3 tensor, and what is wrong with those that are incomplete.

    A module with a fault is left out of the result, so what is in it can be relied on.
    """
    grouped: dict[str, dict[str, StoredTensor]] = {}
    beside: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        module, suffix = split_tensor(tensor.name)
        if suffix in _SUFFIXES:
            grouped.setdefault(module, {})[suffix] = tensor
        elif suffix in (_WEIGHT, fmt.BIAS):
            beside.setdefault(module, {})[suffix] = tensor
    modules: dict[str, LinearModule] = {}
    faults: list[Glm53Error] = []
    for name, parts in grouped.items():
        try:
            modules[name] = _assemble(name, parts | beside.get(name, {}))
        except Glm53Error as fault:
            faults.append(fault)
    return modules, faults


def _assemble(name: str, parts: Mapping[str, StoredTensor]) -> LinearModule:
    if any(suffix in parts for suffix in _LEGACY):
        raise FormatError(
            "scales-legacy",
            f"{name} has packed signs ({'/'.join(s for s in _LEGACY if s in parts)}) of exllamav3 before 0.0.2",
            expected=f"{name}.{fmt.SUH} and {name}.{fmt.SVH}",
            hint="use a pack made with exllamav3 0.0.2 or newer",
        )
    for suffix in (fmt.TRELLIS, fmt.SUH, fmt.SVH):
        if suffix not in parts:
            raise PackError("tensor-missing", f"{name}.{suffix} is missing", hint=_REFETCH)
    if _WEIGHT in parts:
        raise PackError(
            "tensor-doubled",
            f"{name} is stored twice, as {name}.{fmt.TRELLIS} and as {name}.{_WEIGHT}",
            hint="remove the shard that the index does not name; mixed downloads of two repositories do this",
        )
    in_features, out_features, bits = fmt.features_of_trellis(parts[fmt.TRELLIS].shape, f"{name}.{fmt.TRELLIS}")
    _require(parts[fmt.TRELLIS], "I16", parts[fmt.TRELLIS].shape)
    _require(parts[fmt.SUH], "F16", (in_features,))
    _require(parts[fmt.SVH], "F16", (out_features,))
    return LinearModule(name, in_features, out_features, bits, _codebook(name, parts), fmt.BIAS in parts)


def _codebook(name: str, parts: Mapping[str, StoredTensor]) -> Codebook:
    markers: list[Codebook] = [book for book in ("mcg", "mul1") if book in parts]
    if len(markers) > 1:
        raise PackError(
            "codebook-ambiguous",
            f"{name} has the markers of two codebooks",
            expected=f"one of {name}.mcg and {name}.mul1",
            found="both",
            hint=_REFETCH,
        )
    if not markers:
        return "3inst"
    marker = parts[markers[0]]
    if marker.dtype not in ("I32", "U32") or marker.shape not in ((), (1,)):
        raise PackError(
            "tensor-shape",
            f"{marker.name} is no codebook marker",
            expected="I32 [] or [1]",
            found=f"{marker.dtype} {list(marker.shape)}",
            hint=_REFETCH,
        )
    return markers[0]


def _require(tensor: StoredTensor, dtype: str, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise PackError(
            "tensor-shape",
            f"{tensor.name} does not fit the trellis of its module",
            expected=f"{dtype} {list(shape)}",
            found=f"{tensor.dtype} {list(tensor.shape)}",
            hint=_REFETCH,
        )
