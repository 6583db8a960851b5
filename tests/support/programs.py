"""What a test needs of the machine: a skip by its name, or a failure where everything has to be there."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Skip, or fail where nothing may be skipped."""
    if os.environ.get("GLM53_EXL3_CI") == "1":
        pytest.fail(f"{what}, and GLM53_EXL3_CI=1 allows no skip")
    pytest.skip(what)


def require_program(name: str) -> None:
    """Skip a test where a program is missing; fail where everything has to be there."""
    if shutil.which(name) is None:
        lacking(f"{name} is not installed")
