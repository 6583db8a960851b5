"""The flake of this repository, in a copy of its own, with the stub of nixpkgs and small source trees as inputs.

A copy, because Nix takes files from git, and because some tests change what they then evaluate.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SYSTEMS: Final = ("aarch64-linux", "x86_64-linux")
#: As README.md and docs/verify-on-spark.md have it.
OVERRIDES: Final = (
    "--no-write-lock-file",
    *("--override-input", "nixpkgs", "path:./tests/nixpkgs-stub"),
    *("--override-input", "vllm-src", "path:./tests/sources/vllm"),
    *("--override-input", "exllamav3-src", "path:./tests/sources/exllamav3"),
)
#: Programs and packages of each system: a GB10 is needed for what serves.
PROGRAMS = {
    "aarch64-linux": {"serve", "serve-upstream", "preflight", "fetch", "demo"},
    "x86_64-linux": {"preflight", "fetch", "demo"},
}
PACKAGES = {
    "aarch64-linux": PROGRAMS["aarch64-linux"]
    | {"plugin", "exllamav3-extension", "native-extension", "vllm-fork", "wheelhouse", "wheelhouse-upstream"},
    "x86_64-linux": PROGRAMS["x86_64-linux"] | {"plugin"},
}
#: Folders and files that the flake reads.
_PARTS: Final = ("flake.nix", "flake.lock", "nix", "patches", "python", "tests", "tools", "docs", "LICENSE", "NOTICE")
_LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "data", "goldens.tmp")


def copy_tree(target: Path) -> Path:
    """Copy what the flake reads."""
    for name in _PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=_LEFT_OUT)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def run_nix(tree: Path, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """Run `nix` in a tree without asking any binary cache."""
    settings = "experimental-features = nix-command flakes\nsubstituters =\n"
    environment = {**os.environ, "NIX_CONFIG": settings}
    return subprocess.run(
        ["nix", *arguments], cwd=tree, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def evaluate(tree: Path, attribute: str, apply: str = "x: x") -> Any:
    """Value of an output of the flake.

    Raises:
        AssertionError: it does not evaluate; with what Nix said.
    """
    done = run_nix(tree, "eval", "--json", f".#{attribute}", "--apply", apply, *OVERRIDES)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def derivations(tree: Path, derivation: str) -> dict[str, dict[str, Any]]:
    """A derivation and everything it is built from, as Nix shows them."""
    done = run_nix(tree, "show-derivation", "--recursive", derivation)
    assert done.returncode == 0, done.stderr
    shown: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return shown
