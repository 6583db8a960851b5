"""Writes nix/settings.json: the settings of `serve` as the NixOS module declares them.

`.venv/bin/python tools/options/settings.py` writes it anew, with `--stdout` it is printed; a test compares.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from glm53_exl3.serve.settings import settings_schema

ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = ROOT / "nix" / "settings.json"


def settings_json() -> str:
    """Every setting as :class:`glm53_exl3.serve.settings.SettingSpec` has it, one a line."""
    lines = [json.dumps(asdict(spec), ensure_ascii=False) for spec in settings_schema()]
    return "[\n  " + ",\n  ".join(lines) + "\n]\n"


def main() -> None:
    """Write or print the settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stdout", action="store_true", help="print them instead")
    if parser.parse_args().stdout:
        sys.stdout.write(settings_json())
    else:
        SETTINGS.write_text(settings_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
