"""Documents name outputs and commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.nix_flake import OVERRIDES, PACKAGES, ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = sorted((ROOT / "python" / "src").rglob("*.py"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_output_of_the_flake_that_a_document_names_exists(path: Path) -> None:
    named = set(re.findall(r"(?<!\w)\.#([a-z][a-z0-9-]*)(?![a-z0-9.-]*\.[a-z])", path.read_text(encoding="utf-8")))
    assert named <= PACKAGES["aarch64-linux"], named - PACKAGES["aarch64-linux"]


def test_programs_that_hints_name_exist() -> None:
    named = {name for path in MODULES for name in re.findall(r"nix run \.#([a-z-]+)", path.read_text(encoding="utf-8"))}
    assert {"serve"} <= named <= PACKAGES["aarch64-linux"]


def test_command_of_the_stub_tier_is_the_one_that_is_tested() -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / "docs" / "nix.md").read_text(encoding="utf-8"))
    assert "nix flake check " + " ".join(OVERRIDES) in text
