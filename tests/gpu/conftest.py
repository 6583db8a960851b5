"""GPU tests of the exllamav3 backend; all skip without a GPU or without the compiled extension."""

from __future__ import annotations

import importlib.util

import pytest
import torch

MODULE = "glm53_exl3_exllamav3_ext"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and importlib.util.find_spec(MODULE) is not None:
        return
    skip = pytest.mark.skip(reason=f"needs a GPU and {MODULE}: tools/exllamav3_extension/build.py")
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(skip)
