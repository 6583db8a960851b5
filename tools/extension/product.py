"""What a build makes: a description that compilation, link, wheel and record read, whichever kernels they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from resources import KernelResources


@dataclass(frozen=True)
class Units:
    """Sources of one folder; they are compiled in it, so that no path of this machine gets into an object.

    Attributes:
        folder: absolute.
        names: paths relative to it, in the order in which they are compiled.
    """

    folder: Path
    names: tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """An extension: one Python module and its wheel.

    Attributes:
        module: name of the Python module.
        version: of the wheel.
        summary: of the wheel, one line.
        description: of the wheel: whose code it is, under which licence.
        licence: SPDX expression.
        licences: texts by their path in the wheel's folder of licences; an empty one is missing.
        units: what is compiled, in order.
        binding: the unit that defines the Python module.
        defines: macros of the C++ units, as C++ text. All products have GLM53_EXL3_ARCH_LIST beside them.
        headers: folders of headers that go before all others, in every unit.
        host_headers: the same for C++ units alone, before `headers`.
        nvcc_flags: beyond those that every product has.
        origin: what build.json says of the source.
        table: the Markdown of resources.md from the kernels of all units.
    """

    module: str
    version: str
    summary: str
    description: str
    licence: str
    licences: Mapping[str, str]
    units: tuple[Units, ...]
    binding: str
    defines: Mapping[str, str]
    headers: tuple[Path, ...]
    host_headers: tuple[Path, ...]
    nvcc_flags: tuple[str, ...]
    origin: Mapping[str, str]
    table: Callable[[Iterable[KernelResources]], str]
