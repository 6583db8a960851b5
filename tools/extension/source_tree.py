"""A tree of exllamav3, as a git checkout or as its unpacked wheel, and what of it is compiled."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from failure import BuildError
from pinned import KernelSource

_BITS: Final = range(1, 9)
#: In exllamav3's words: cb1 is the codebook mcg, cb2 is mul1.
_CODEBOOKS: Final = (1, 2)
_INSTANCES: Final = "quant/comp_units/exl3_moe_inst_"
#: k0 takes the bits of gate, up and down at run time. Longest to compile first, so that no core idles at the end.
MOE_UNITS: Final[tuple[str, ...]] = (
    *(f"{_INSTANCES}k0_n{width}_cb{codebook}.cu" for width in (256, 128) for codebook in _CODEBOOKS),
    "quant/exl3_moe.cu",
    *(f"{_INSTANCES}k{bits}_cb{codebook}.cu" for bits in _BITS for codebook in _CODEBOOKS),
    "quant/exl3_devctx.cu",
)
#: Whole matrices to 16 bits, and the Hadamard transform alone.
DECODE_UNITS: Final[tuple[str, ...]] = ("quant/reconstruct.cu", "quant/hadamard.cu")
#: Sets of kernels by name. A further set is another entry here and its functions in binding.cpp.
UNIT_SETS: Final[dict[str, tuple[str, ...]]] = {"moe": MOE_UNITS, "decode": DECODE_UNITS}
_HEADER: Final = "quant/exl3_moe.cuh"
#: Of x86 only; exllamav3 1.4.5 has them in files that are no unit of ours.
_X86: Final = re.compile(rb"immintrin\.h|_mm_pause|cpuid\.h")


@dataclass(frozen=True)
class SourceTree:
    """A checked tree.

    Attributes:
        kernels: folder exllamav3_ext.
        version: what the tree calls itself.
        revision: where it is from.
        units: paths relative to `kernels`.
        licence: text of exllamav3's licence, empty where the tree has none.
    """

    kernels: Path
    version: str
    revision: str
    units: tuple[str, ...]
    licence: str


def open_tree(root: Path, pinned: KernelSource, revision: str | None) -> SourceTree:
    """Check a tree before anything is compiled.

    Args:
        root: folder that holds exllamav3/exllamav3_ext.
        pinned: what the plugin was written against.
        revision: where the tree is from, when it is not the pinned revision.

    Raises:
        BuildError: not such a tree, another release, units missing, x86 code, another number of arguments.
    """
    kernels = root / "exllamav3" / "exllamav3_ext"
    clone = f"git clone https://github.com/{pinned.repository} TREE; git -C TREE checkout {pinned.revision}"
    units = tuple(unit for names in UNIT_SETS.values() for unit in names)
    missing = [name for name in (_HEADER, *units) if not (kernels / name).is_file()]
    if missing:
        raise BuildError(
            "tree-kernels",
            f"{root} lacks {len(missing)} of {len(units) + 1} files of the kernels, first {missing[0]}",
            expected=f"a tree of {pinned.repository} {pinned.version}",
            hint=clone,
        )
    version = _version(root, pinned, clone)
    if revision is None and version != pinned.version:
        raise BuildError(
            "tree-version",
            f"{root} is another release of exllamav3 than the pinned one",
            expected=pinned.version,
            found=version,
            hint=f"{clone}; or say what it is: --revision {version}",
        )
    if (arity := count_parameters((kernels / _HEADER).read_text(encoding="utf-8"))) != pinned.moe_arity:
        raise BuildError(
            "tree-arity",
            f"exl3_moe of {root} takes {arity} arguments",
            expected=f"{pinned.moe_arity}, as exllamav3 {pinned.version} has and the plugin passes",
            hint=clone,
        )
    _refuse_x86(kernels, units)
    return SourceTree(kernels, version, revision or pinned.revision, units, _licence(root))


def count_parameters(header: str) -> int:
    """Parameters in the declaration of `exl3_moe`; 0 where there is none."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.DOTALL)
    declaration = re.search(r"\bexl3_moe\s*\(([^()]*)\)\s*;", text)
    parameters = declaration.group(1).strip() if declaration else ""
    return parameters.count(",") + 1 if parameters else 0


def _version(root: Path, pinned: KernelSource, clone: str) -> str:
    file = root / "exllamav3" / "version.py"
    found = re.search(r"__version__\s*=\s*[\"']([^\"']+)", file.read_text(encoding="utf-8")) if file.is_file() else None
    if found is None:
        raise BuildError("tree-version", f"{file} does not say a version", expected=pinned.version, hint=clone)
    return found.group(1)


def _refuse_x86(kernels: Path, units: Iterable[str]) -> None:
    """Follow the quoted includes of every unit: x86 code would fail only on a Spark, minutes later."""
    waiting = [kernels / unit for unit in units]
    seen: set[Path] = set()
    while waiting:
        file = waiting.pop().resolve()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        text = file.read_bytes()
        if (found := _X86.search(text)) is not None:
            raise BuildError(
                "tree-x86",
                f"{file} needs an x86 compiler",
                found=found.group().decode(),
                hint="leave the file out of UNIT_SETS in tools/extension/source_tree.py",
            )
        waiting += [file.parent / name.decode() for name in re.findall(rb'#\s*include\s+"([^"]+)"', text)]


def _licence(root: Path) -> str:
    """A checkout has it at its root, an unpacked wheel beside its metadata."""
    for file in (root / "LICENSE", *sorted(root.glob("exllamav3-*.dist-info/**/LICENSE"))):
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return ""
