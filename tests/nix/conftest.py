"""One copy of the flake for all tests that only read it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.nix_flake import copy_tree
from support.programs import require_program

# The tools import one another by name, as programs of one folder.
sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "environment"))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flake, to be left as it is."""
    require_program("nix")
    return copy_tree(tmp_path_factory.mktemp("flake"))


@pytest.fixture
def own_tree(tmp_path: Path) -> Path:
    """A copy that a test may change."""
    require_program("nix")
    return copy_tree(tmp_path)
