"""The NixOS module evaluated by `nix-instantiate`, and what is generated from it.

`.venv/bin/python tests/support/nixos_module.py` writes the goldens of tests/module anew; tests compare.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MODULE_TESTS: Final = ROOT / "tests" / "module"
GOLDENS: Final = MODULE_TESTS / "goldens"
STUB: Final = "import ./tests/nixpkgs-stub/lib"
#: Name of each configuration of tests/module/cases.nix.
CASES: Final = ("minimal", "demo", "full", "first-of-two", "second-of-two", "fetched")
#: Where the stub of the module's packages says that a program is.
PROGRAM: Final = re.compile(r"/nix/store/0{32}-glm53-exl3-[a-z-]+/bin/glm53-exl3")
_SETTINGS_FILE: Final = re.compile(r"/nix/store/[a-z0-9]{32}-(glm53-exl3-[a-z0-9-]+\.toml)")
_MASKED: Final = f"/nix/store/{'0' * 32}-"


class NixError(Exception):
    """What Nix said when it refused to evaluate."""


def evaluate(expression: str, *arguments: str) -> Any:
    """The value of a Nix expression, in the root of this repository.

    Raises:
        NixError: it does not evaluate.
    """
    # Settings files are written to the store, so that tests can read them.
    command = ["nix-instantiate", "--eval", "--strict", "--json", "--read-write-mode", "--expr", expression, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise NixError(done.stderr)
    return json.loads(done.stdout)


def evaluate_module(
    configuration: str, attribute: str, lib: str = STUB, system: str = "aarch64-linux", packages: bool = True
) -> Any:
    """An attribute of tests/module/evaluate.nix for a configuration that is a Nix expression.

    Args:
        configuration: a module.
        attribute: what is asked for.
        lib: the evaluator, as an expression.
        system: of the machine.
        packages: whether there is `pkgs.glm53-exl3`.
    """
    return evaluate(
        f"(import ./tests/module/evaluate.nix {{ lib = {lib}; system = {json.dumps(system)}; "
        f"packages = {json.dumps(packages)}; "
        f"configuration = {configuration}; }}).{attribute}"
    )


def case(name: str) -> str:
    """The expression of a configuration of tests/module/cases.nix."""
    return f"(import ./tests/module/cases.nix).{name}"


@cache
def files_of(name: str, lib: str = STUB) -> dict[str, str]:
    """Units and settings files of a configuration, by the name of the golden."""
    files: dict[str, str] = {}
    for unit, text in evaluate_module(case(name), "units", lib).items():
        for found in _SETTINGS_FILE.finditer(text):
            files[found[1]] = Path(found[0]).read_text(encoding="utf-8")
        files[f"{unit}.service"] = _SETTINGS_FILE.sub(rf"{_MASKED}\1", text).rstrip("\n") + "\n"
    return files


def goldens_of(name: str) -> dict[str, str]:
    """The same as the repository has it."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((GOLDENS / name).iterdir())}


def words(line: str) -> list[str]:
    """Arguments of an ExecStart line, undoing systemd's quotes, specifiers and variables. No code of the module's."""
    program, *quoted = re.findall(r'"(?:[^"\\]|\\.)*"|\S+', line)
    return [program, *(json.loads(word).replace("%%", "%").replace("$$", "$") for word in quoted)]


def main() -> None:
    """Write the goldens."""
    shutil.rmtree(GOLDENS, ignore_errors=True)
    for name in CASES:
        (GOLDENS / name).mkdir(parents=True)
        for file, text in files_of(name).items():
            (GOLDENS / name / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
