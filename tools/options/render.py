"""Writes docs/options.md from the options of the NixOS module.

`.venv/bin/python tools/options/render.py` writes it anew, with `--stdout` it is printed; a test compares. Needs Nix.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "options.md"
_MODULE: Final = "services.glm53-exl3"
_INSTANCE: Final = f"{_MODULE}.instances.<name>"
_HEAD: Final = """# Options of the NixOS module

Made from `nix/module.nix` by `.venv/bin/python tools/options/render.py`; a test compares. How they go together, with
examples: [nixos.md](nixos.md). What each setting does to vLLM, the profiles and the rules: [serve.md](serve.md).
"""
_PARTS: Final = (
    (
        "Of the machine",
        _MODULE,
        "Below `services.glm53-exl3`.",
    ),
    (
        "Of an instance",
        _INSTANCE,
        "Below `services.glm53-exl3.instances.<name>`, where the name is of small letters, digits and dashes.",
    ),
    (
        "Settings",
        f"{_INSTANCE}.settings",
        "Below `services.glm53-exl3.instances.<name>.settings`: every setting of `serve` but `pack`, `draft`, "
        "`runtime` and `api-key-file`, for which an instance has options of its own. What is `null` is left to the "
        "profile.",
    ),
)


def document() -> str:
    """The whole of docs/options.md."""
    command = ["nix-instantiate", "--eval", "--strict", "--json", "--expr"]
    expression = "(import ./tests/module/evaluate.nix { configuration = { }; }).options"
    done = subprocess.run([*command, expression], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    options = json.loads(done.stdout)
    parts = [_HEAD]
    for title, prefix, text in _PARTS:
        rows = [_row(option, prefix) for option in options if _part_of(option["name"]) == prefix]
        parts.append(f"## {title}\n\n{text}\n\n" + _table(["option", "type", "default", "meaning"], rows))
    return "\n".join(parts)


def _part_of(name: str) -> str:
    """The longest of the prefixes."""
    return max((prefix for _, prefix, _ in _PARTS if name.startswith(f"{prefix}.")), key=len)


def _row(option: dict[str, Any], prefix: str) -> list[str]:
    example = f" Example: `{option['example']}`." if option["example"] else ""
    name = option["name"].removeprefix(f"{prefix}.")
    return [f"`{name}`", option["type"], f"`{option['default']}`", f"{option['description']}{example}"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def main() -> None:
    """Write or print the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stdout", action="store_true", help="print it instead")
    if parser.parse_args().stdout:
        sys.stdout.write(document())
    else:
        DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
