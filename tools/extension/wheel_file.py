"""Pack the module as a wheel, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import zipfile
from pathlib import Path
from typing import Final

from failure import BuildError
from pinned import Pinned
from product import Product
from toolchain import Toolchain

#: The first moment that a zip file can name.
_EARLIEST: Final = 315532800


def write_wheel(module: Path, product: Product, toolchain: Toolchain, pinned: Pinned, folder: Path) -> Path:
    """Write the wheel of a linked module into `folder`, dated by SOURCE_DATE_EPOCH.

    Raises:
        BuildError: the tree has no licence, without which its kernels must not be handed on.
    """
    if not all(product.licences.values()):
        raise BuildError(
            "tree-licence",
            "the tree has no LICENSE, which has to go with the kernels",
            hint="take the whole tree, as docs/extension.md says",
        )
    tag = f"{toolchain.python_tag}-{toolchain.python_tag}-linux_{toolchain.machine}"
    information = f"{product.module}-{product.version}.dist-info"
    members: dict[str, bytes] = {
        module.name: module.read_bytes(),
        f"{information}/METADATA": _metadata(product, toolchain, pinned).encode(),
        f"{information}/WHEEL": _wheel(product, tag).encode(),
        **{f"{information}/licenses/{name}": text.encode() for name, text in product.licences.items()},
    }
    record = f"{information}/RECORD"
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in members.items()]
    members[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    path = folder / f"{product.module}-{product.version}-{tag}.whl"
    moment = time.gmtime(max(_EARLIEST, int(os.environ.get("SOURCE_DATE_EPOCH", _EARLIEST))))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name, moment)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o755 if name == module.name else 0o644) << 16
            archive.writestr(member, data)
    return path


def _metadata(product: Product, toolchain: Toolchain, pinned: Pinned) -> str:
    numbers = toolchain.python_tag.removeprefix("cp")
    return "\n".join(
        [
            "Metadata-Version: 2.4",
            f"Name: {product.module.replace('_', '-')}",
            f"Version: {product.version}",
            f"Summary: {product.summary}",
            f"License-Expression: {product.licence}",
            *(f"License-File: {name}" for name in product.licences),
            f"Requires-Python: =={numbers[0]}.{numbers[1:]}.*",
            f"Requires-Dist: torch=={pinned.torch}",
            "",
            product.description,
            "",
        ]
    )


def _wheel(product: Product, tag: str) -> str:
    return f"Wheel-Version: 1.0\nGenerator: {product.module}\nRoot-Is-Purelib: false\nTag: {tag}\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
