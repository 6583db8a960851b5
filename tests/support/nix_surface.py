"""Which attributes of nixpkgs the Nix files use, read from their text.

`python tests/support/nix_surface.py` rewrites tests/nixpkgs-surface.json; a check of the flake asserts it on a real
nixpkgs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SURFACE = ROOT / "tests" / "nixpkgs-surface.json"
#: Given by callPackage or by the scope's own machinery, and what only some nixpkgs have and is asked for with `?`.
_OURS = {"lib", "callPackage", "nixosSystem", "fetchTree"}


def _text(path: Path) -> str:
    without_comments = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text(encoding="utf-8"))
    # Shell and Python inside strings hold words that look like arguments.
    return re.sub(r"''.*?''(?!\$)", "''''", without_comments, flags=re.DOTALL)


def nix_files() -> list[Path]:
    """Every file that can ask nixpkgs for something."""
    return sorted((ROOT / "nix").rglob("*.nix"))


def used_lib() -> set[str]:
    """Attributes of lib, with dots where one is inside another."""
    found: set[str] = set()
    for path in nix_files():
        # Interpolations may stand inside strings, so here the strings stay.
        text = re.sub(r"(?m)(^|\s)#.*$", "", path.read_text(encoding="utf-8"))
        found |= set(re.findall(r"(?<!\w)lib\.([a-zA-Z']+(?:\.[a-zA-Z0-9']+)*)", text))
        for names in re.findall(r"inherit \((?:nixpkgs\.)?lib\)([^;]*);", text):
            found |= set(names.split())
        if "types" in text and "lib" in text:
            found |= {f"types.{name}" for name in re.findall(r"(?<![\w.])types\.([a-zA-Z.]+)", text)}
    return {name for name in found if name not in _OURS and name != "types"}


def used_packages() -> set[str]:
    """Attributes of pkgs: arguments that the overlay's scope does not have, and what is asked of `final` and `pkgs`."""
    overlay = (ROOT / "nix" / "overlay.nix").read_text(encoding="utf-8")
    scope = set(re.findall(r"(?m)^      ([a-zA-Z0-9-]+) =", overlay)) | {"sources", "environment", "program"}
    found: set[str] = set()
    for path in [
        *sorted((ROOT / "nix" / "packages").rglob("*.nix")),
        ROOT / "nix" / "lib" / "wheels.nix",
        ROOT / "nix" / "shell.nix",
    ]:
        head = re.match(r"\s*\{(.*?)\n?\}:", _text(path), flags=re.DOTALL)
        if head:
            found |= set(re.findall(r"(?m)^\s*([a-zA-Z][a-zA-Z0-9_-]*)\s*(?:,|$)", head[1]))
    for path in nix_files():
        found |= set(re.findall(r"(?<![\w.])(?:final|pkgs)\.([a-zA-Z][a-zA-Z0-9-]*)", _text(path)))
        for names in re.findall(r"inherit \(pkgs\)([^;]*);", _text(path)):
            found |= set(names.split())
    return found - scope - _OURS - {"glm53-exl3", "newScope"}


if __name__ == "__main__":
    surface = {"lib": sorted(used_lib()), "pkgs": sorted(used_packages())}
    SURFACE.write_text(json.dumps(surface, indent=1) + "\n", encoding="utf-8")
