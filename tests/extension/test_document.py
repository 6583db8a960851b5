"""docs/extension.md keeps up with the build script."""

from __future__ import annotations

import re

from extension.building import COMPILER_WHEELS, TOOL
from extension.pinned_wheels import ROOT, pinned_file

DOCUMENT = (ROOT / "docs" / "extension.md").read_text()


def test_every_refusal_is_documented_and_no_other() -> None:
    sources = "".join(path.read_text() for path in TOOL.glob("*.py"))
    raised = set(re.findall(r'BuildError\(\s*"([a-z0-9-]+)"', sources))
    assert len(raised) > 15
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", DOCUMENT, re.MULTILINE)) == raised


def test_the_wheels_of_the_compiler_are_the_pinned_ones() -> None:
    for name in COMPILER_WHEELS:
        assert f"{name}=={pinned_file(name, 'aarch64-linux')[0]}" in DOCUMENT


def test_options_of_the_examples_exist() -> None:
    parser = (TOOL / "build.py").read_text()
    examples = "".join(re.findall(r"build\.py.*?(?:[^\\]\n)", DOCUMENT, re.DOTALL))
    options = set(re.findall(r"(?<= )--[a-z-]+", examples))
    assert options
    assert all(f'add("{option}"' in parser for option in options), options
