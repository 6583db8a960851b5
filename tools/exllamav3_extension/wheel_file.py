"""Pack the module as a wheel, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import zipfile
from pathlib import Path
from typing import Final

from compilation import MODULE
from failure import BuildError
from pinned import REPOSITORY, Pinned
from source_tree import SourceTree
from toolchain import Toolchain

#: The first moment that a zip file can name.
_EARLIEST: Final = 315532800
_LICENCE: Final = REPOSITORY / "LICENSE"


def write_wheel(module: Path, tree: SourceTree, toolchain: Toolchain, pinned: Pinned, folder: Path) -> Path:
    """Write the wheel of a linked module into `folder`, dated by SOURCE_DATE_EPOCH.

    Raises:
        BuildError: the tree has no licence, without which its kernels must not be handed on.
    """
    if not tree.licence:
        raise BuildError(
            "tree-licence",
            "the tree has no LICENSE, which has to go with the kernels",
            hint=f"take the whole tree of {pinned.source}",
        )
    version = tree.version.replace("-", "+", 1)
    tag = f"{toolchain.python_tag}-{toolchain.python_tag}-linux_{toolchain.machine}"
    information = f"{MODULE}-{version}.dist-info"
    members: dict[str, bytes] = {
        module.name: module.read_bytes(),
        f"{information}/METADATA": _metadata(tree, toolchain, pinned, version).encode(),
        f"{information}/WHEEL": _wheel(tag).encode(),
        f"{information}/licenses/exllamav3/LICENSE": tree.licence.encode(),
        f"{information}/licenses/glm53-exl3/LICENSE": _LICENCE.read_bytes(),
    }
    record = f"{information}/RECORD"
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in members.items()]
    members[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    path = folder / f"{MODULE}-{version}-{tag}.whl"
    moment = time.gmtime(max(_EARLIEST, int(os.environ.get("SOURCE_DATE_EPOCH", _EARLIEST))))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name, moment)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o755 if name == module.name else 0o644) << 16
            archive.writestr(member, data)
    return path


def _metadata(tree: SourceTree, toolchain: Toolchain, pinned: Pinned, version: str) -> str:
    numbers = toolchain.python_tag.removeprefix("cp")
    return "\n".join(
        [
            "Metadata-Version: 2.4",
            f"Name: {MODULE.replace('_', '-')}",
            f"Version: {version}",
            f"Summary: MoE kernels of exllamav3 {tree.version} for glm53-exl3, compiled ahead of time",
            "License-Expression: MIT AND Apache-2.0",
            "License-File: exllamav3/LICENSE",
            "License-File: glm53-exl3/LICENSE",
            f"Requires-Python: =={numbers[0]}.{numbers[1:]}.*",
            f"Requires-Dist: torch=={pinned.torch}",
            "",
            f"Kernels of {pinned.source} at {tree.revision} (MIT), with a binding of glm53-exl3 (Apache-2.0).",
            "",
        ]
    )


def _wheel(tag: str) -> str:
    return f"Wheel-Version: 1.0\nGenerator: {MODULE}\nRoot-Is-Purelib: false\nTag: {tag}\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
