"""The product `exllamav3`: MoE kernels of a tree of exllamav3, with this project's binding."""

from __future__ import annotations

from typing import Final

from pinned import REPOSITORY, KernelSource
from product import Product, Units
from source_tree import SourceTree
from tables import moe_table

MODULE: Final = "glm53_exl3_exllamav3_ext"
BINDING: Final = "binding.cpp"
#: Ours: the module, a layer's call, and the kernels around exllamav3's.
OWN_UNITS: Final = (BINDING, "layer.cpp", "routing.cu")
SOURCES: Final = REPOSITORY / "python" / "csrc" / "exllamav3"
_LICENCE: Final = REPOSITORY / "LICENSE"


def exllamav3_product(tree: SourceTree, source: KernelSource) -> Product:
    """Describe it.

    Args:
        tree: where its kernels are.
        source: what the plugin was written against.
    """
    return Product(
        module=MODULE,
        version=tree.version.replace("-", "+", 1),
        summary=f"MoE kernels of exllamav3 {tree.version} for glm53-exl3, compiled ahead of time",
        description=(
            f"Kernels of {source.repository} at {tree.revision} (MIT), with a binding of glm53-exl3 (Apache-2.0)."
        ),
        licence="MIT AND Apache-2.0",
        licences={
            "exllamav3/LICENSE": tree.licence,
            "glm53-exl3/LICENSE": _LICENCE.read_text(encoding="utf-8"),
        },
        # Ours first: an error in what is ours shows at once.
        units=(Units(SOURCES, OWN_UNITS), Units(tree.kernels, tree.units)),
        binding=BINDING,
        defines={
            "GLM53_EXL3_SOURCE_REVISION": f'"{tree.revision}"',
            "GLM53_EXL3_MOE_ARITY": str(source.moe_arity),
        },
        # These headers stand in for ones of torch and cuBLAS.
        headers=(SOURCES / "compat",),
        host_headers=(tree.kernels,),
        nvcc_flags=(
            "--use_fast_math",
            # Unused variables and a device class that inherits nothing, as exllamav3's own build silences.
            *("-Xcudafe", "--diag_suppress=177", "-Xcudafe", "--diag_suppress=20012"),
        ),
        origin={"source_version": tree.version, "source_revision": tree.revision},
        table=moe_table,
    )
