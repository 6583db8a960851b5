"""The derivations of both wheelhouses, as far as they can be looked at without building for aarch64.

Their command is run with the files that Nix would give it, but for the wheels, which are made up.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from support.nix_flake import copy_tree, derivations, evaluate
from support.programs import require_program
from support.tiny_wheels import write_wheel

BUILT = {
    "wheelhouse": ["glm53-exl3-0", "glm53-exl3-exllamav3-extension", "glm53-exl3-native-extension", "vllm-fork-0"],
    "wheelhouse-upstream": ["glm53-exl3-0", "glm53-exl3-exllamav3-extension", "glm53-exl3-native-extension"],
}
#: What each would hold: distribution, tags, and licence files where they are other than one.
WHEELS = {
    "glm53-exl3-0": ("glm53-exl3", "py3-none-any", {}),
    "glm53-exl3-exllamav3-extension": ("glm53_exl3_exllamav3_ext", "cp312-cp312-linux_aarch64", None),
    "glm53-exl3-native-extension": ("glm53_exl3_kernels", "cp312-cp312-linux_aarch64", None),
    "vllm-fork-0": ("vllm", "cp38-abi3-linux_aarch64", None),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_program("nix")
    return copy_tree(tmp_path_factory.mktemp("flake"))


@cache
def command(tree: Path, package: str) -> str:
    path = evaluate(tree, f"packages.aarch64-linux.{package}.drvPath")
    environment: dict[str, str] = derivations(tree, path)[path]["env"]
    return next(text for text in environment.values() if "make.py" in text).replace("\\\n", " ")


@pytest.mark.parametrize("package", BUILT)
def test_command_takes_the_wheels_that_are_compiled_here(tree: Path, package: str) -> None:
    folders = re.findall(r"/nix/store/[a-z0-9]{32}-(\S+)/\*\.whl", command(tree, package))
    assert len(folders) == len(BUILT[package])
    assert all(folder.startswith(name) for folder, name in zip(folders, BUILT[package], strict=True)), folders


def test_only_the_fork_hands_on_licences_of_what_is_compiled_in(tree: Path) -> None:
    assert re.search(r"--compiled-in /nix/store/\S+-vllm-fork-\S+/licenses", command(tree, "wheelhouse"))
    assert "--compiled-in" not in command(tree, "wheelhouse-upstream")


@pytest.mark.parametrize(("package", "runtime"), [("wheelhouse", "fork"), ("wheelhouse-upstream", "upstream")])
def test_command_makes_a_wheelhouse_for_the_spark(tree: Path, tmp_path: Path, package: str, runtime: str) -> None:
    text = command(tree, package)
    for folder in re.findall(r"(/nix/store/\S+)/\*\.whl", text):
        known = next(name for name in BUILT[package] if Path(folder).name[33:].startswith(name))
        distribution, tags, terms = WHEELS[known]
        write_wheel(tmp_path / known, distribution, tags=tags, terms=terms)
        (tmp_path / known / "licenses" / "cutlass").mkdir(parents=True)
        (tmp_path / known / "licenses" / "cutlass" / "LICENSE.txt").write_text("BSD", encoding="utf-8")
        text = text.replace(folder, shlex.quote(str(tmp_path / known)))
    house = tmp_path / "house"
    text = text.replace("python3 ", f"{shlex.quote(sys.executable)} ").replace("$out", shlex.quote(str(house)))
    done = subprocess.run(["bash", "-euc", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((house / "wheelhouse.json").read_text(encoding="utf-8"))
    assert (manifest["runtime"], manifest["system"], manifest["cuda"]) == (runtime, "aarch64-linux", "13.0")
    assert len(manifest["wheels"]) == len(BUILT[package])
    # Wheels of the lock ask for 2.34; Ubuntu 24.04 has 2.39.
    assert manifest["needs"] == {"GLIBC": "2.34"}
    assert {path.name for path in (house / "licences/wheels/glm53-exl3").iterdir()} == {"LICENSE", "NOTICE"}
    assert (house / "licences/compiled-in/cutlass").exists() == (runtime == "fork")
    assert "torch==2.13.0 --hash=sha256:" in (house / "requirements.txt").read_text(encoding="utf-8")
    assert (house / "install.sh").stat().st_mode & 0o111
