"""EXL3 linears of a pack, put together from the tensors that belong to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Final, NamedTuple

from glm53_exl3.errors import FormatError, Glm53Error
from glm53_exl3.format import tensors as fmt
from glm53_exl3.format.codebooks import MARKER_VALUES, Codebook
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.safetensors_header import StoredTensor

_LEGACY: Final = ("su", "sv")
_SUFFIXES: Final = frozenset({fmt.TRELLIS, fmt.SUH, fmt.SVH, *MARKER_VALUES, *_LEGACY})
#: Other tensors that a module may have; `weight` beside a trellis means that it is stored twice.
_WEIGHT: Final = "weight"
_REFETCH: Final = "fetch the shard that holds this module again, or the whole pack when its index says the same"


_dtype_and_shape = itemgetter(StoredTensor._fields.index("dtype"), StoredTensor._fields.index("shape"))
#: Tensors of one module by suffix.
Parts = dict[str, StoredTensor]


class LinearModule(NamedTuple):
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


class GroupedTensors(NamedTuple):
    """Tensors by module and suffix.

    Attributes:
        exl3: tensors with a suffix of EXL3.
        beside: `weight` and `bias`.
    """

    exl3: dict[str, Parts]
    beside: dict[str, Parts]


def group_tensors(tensors: Iterable[StoredTensor]) -> GroupedTensors:
    """Sort tensors by module; those of neither kind are left out."""
    grouped = GroupedTensors({}, {})
    exl3, beside = grouped
    for tensor in tensors:
        module, _, suffix = tensor.name.rpartition(".")
        if suffix in _SUFFIXES:
            target = exl3
        elif suffix in (_WEIGHT, fmt.BIAS):
            target = beside
        else:
            continue
        parts = target.get(module)
        if parts is None:
            target[module] = {suffix: tensor}
        else:
            parts[suffix] = tensor
    return grouped


def exl3_modules(
    grouped: GroupedTensors, lost: Collection[str] = frozenset()
) -> tuple[dict[str, LinearModule], list[Glm53Error]]:
    """Every module with at least one EXL3 tensor, and what is wrong with those that are incomplete.

    A module with a fault is left out of the result, so what is in it can be relied on.

    Args:
        grouped: the tensors of the pack.
        lost: modules of which a tensor is known to be missing already; they are left out without a fault.
    """
    # A pack has 37,000 modules of a few kinds: each kind is put together once.
    known: dict[tuple[object, ...], tuple[object, ...]] = {}
    modules: dict[str, LinearModule] = {}
    faults: list[Glm53Error] = []
    for name, own in grouped.exl3.items():
        parts = own | grouped.beside[name] if name in grouped.beside else own
        kind = (*parts, *map(_dtype_and_shape, parts.values()))
        fields = known.get(kind)
        if fields is not None:
            modules[name] = LinearModule._make((name, *fields))
            continue
        try:
            modules[name] = assemble(name, parts)
            known[kind] = modules[name][1:]
        except Glm53Error as fault:
            if name not in lost:
                faults.append(fault)
    return modules, faults


def assemble(name: str, parts: Mapping[str, StoredTensor]) -> LinearModule:
    """The linear of a module's tensors by suffix.

    Raises:
        Glm53Error: a tensor is missing, surplus or does not fit the others.
    """
    if any(suffix in parts for suffix in _LEGACY):
        raise FormatError(
            "scales-legacy",
            f"{name} has packed signs ({'/'.join(s for s in _LEGACY if s in parts)}) of exllamav3 before 0.0.2",
            expected=f"{name}.{fmt.SUH} and {name}.{fmt.SVH}",
            hint="use a pack made with exllamav3 0.0.2 or newer",
        )
    for suffix in (fmt.TRELLIS, fmt.SUH, fmt.SVH):
        if suffix not in parts:
            raise DamageError(
                "tensor-missing", f"{name}.{suffix} is missing", hint=_REFETCH, tensors=[t.name for t in parts.values()]
            )
    if _WEIGHT in parts:
        raise DamageError(
            "tensor-doubled",
            f"{name} is stored twice, as {name}.{fmt.TRELLIS} and as {name}.{_WEIGHT}",
            hint="remove the shard that the index does not name; mixed downloads of two repositories do this",
            tensors=[parts[_WEIGHT].name, parts[fmt.TRELLIS].name],
        )
    in_features, out_features, bits = fmt.features_of_trellis(parts[fmt.TRELLIS].shape, f"{name}.{fmt.TRELLIS}")
    _require(parts[fmt.TRELLIS], "I16", parts[fmt.TRELLIS].shape)
    _require(parts[fmt.SUH], "F16", (in_features,))
    _require(parts[fmt.SVH], "F16", (out_features,))
    return LinearModule(name, in_features, out_features, bits, _codebook(name, parts), fmt.BIAS in parts)


def _codebook(name: str, parts: Mapping[str, StoredTensor]) -> Codebook:
    markers: list[Codebook] = [book for book in ("mcg", "mul1") if book in parts]
    if len(markers) > 1:
        raise DamageError(
            "codebook-ambiguous",
            f"{name} has the markers of two codebooks",
            expected=f"one of {name}.mcg and {name}.mul1",
            found="both",
            hint=_REFETCH,
            tensors=[parts[marker].name for marker in markers],
        )
    if not markers:
        return "3inst"
    marker = parts[markers[0]]
    if marker.dtype not in ("I32", "U32") or marker.shape not in ((), (1,)):
        raise DamageError(
            "tensor-shape",
            f"{marker.name} is no codebook marker",
            expected="I32 [] or [1]",
            found=f"{marker.dtype} {list(marker.shape)}",
            hint=_REFETCH,
            tensors=[marker.name],
        )
    return markers[0]


def _require(tensor: StoredTensor, dtype: str, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise DamageError(
            "tensor-shape",
            f"{tensor.name} does not fit the trellis of its module",
            expected=f"{dtype} {list(shape)}",
            found=f"{tensor.dtype} {list(tensor.shape)}",
            hint=_REFETCH,
            tensors=[tensor.name],
        )
