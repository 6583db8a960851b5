"""The product `native`: this project's own MoE kernels."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from pinned import REPOSITORY
from product import Product, Units
from tables import native_table

MODULE: Final = "glm53_exl3_kernels"
BINDING: Final = "binding.cpp"
SOURCES: Final = REPOSITORY / "python" / "csrc" / "native"
_PROJECT: Final = REPOSITORY / "python" / "pyproject.toml"
_LICENCE: Final = REPOSITORY / "LICENSE"


def native_product() -> Product:
    """Describe it; its version is the package's, which calls it."""
    version: str = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return Product(
        module=MODULE,
        version=version,
        summary="MoE kernels of glm53-exl3, compiled ahead of time",
        description=f"Kernels of glm53-exl3 {version} (Apache-2.0).",
        licence="Apache-2.0",
        licences={"glm53-exl3/LICENSE": _LICENCE.read_text(encoding="utf-8")},
        units=(Units(SOURCES, (*variants(SOURCES), BINDING, "layer.cpp")),),
        binding=BINDING,
        defines={"GLM53_EXL3_VERSION": f'"{version}"'},
        headers=(),
        host_headers=(),
        # No --use_fast_math: the kernels' accuracy was measured without it.
        nvcc_flags=(),
        origin={"source_version": version},
        table=native_table,
    )


def variants(folder: Path) -> tuple[str, ...]:
    """Units of the variants, those for any rate first: they take longest, and no core is to idle at the end."""
    return tuple(sorted(path.name for path in folder.glob("variant_*.cu")))
