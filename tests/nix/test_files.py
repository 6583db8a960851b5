"""Nix files as text: they parse, and whitespace, width and length are alike. The formatter comes with nixpkgs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.nix_flake import ROOT
from support.programs import require_program

FILES = sorted([ROOT / "flake.nix", *(ROOT / "nix").rglob("*.nix"), *(ROOT / "tests").rglob("*.nix")])
WIDTH = 125


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_files() -> None:
    assert len(FILES) > 30


def test_every_file_parses() -> None:
    require_program("nix-instantiate")
    done = subprocess.run(["nix-instantiate", "--parse", *FILES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", FILES, ids=name)
def test_whitespace_and_width_are_alike(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\t" not in text
    assert "\n\n\n" not in text
    for number, line in enumerate(text.splitlines(), 1):
        assert line == line.rstrip(), number
        # A formatter breaks no string.
        assert len(line) <= WIDTH or '"' in line, number
        assert (len(line) - len(line.lstrip(" "))) % 2 == 0, number


@pytest.mark.parametrize("path", FILES, ids=name)
def test_file_is_short_enough_to_read(path: Path) -> None:
    limit = 80 if path.name == "flake.nix" else 400
    assert path.read_text(encoding="utf-8").count("\n") < limit


def test_nothing_is_fetched_that_is_not_pinned() -> None:
    fetches = re.compile(r"builtins\.fetch(?:url|Tarball|Git)|fetchFromGitHub|fetchurl")
    found = [name(path) for path in FILES if fetches.search(path.read_text(encoding="utf-8"))]
    assert found == []
