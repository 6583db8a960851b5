"""The flake as it is shipped: every output evaluates for both systems, and nothing pretends.

What these tests cannot prove, because nixpkgs is a stub of ours, is in docs/verify-on-spark.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.nix_flake import OVERRIDES, PACKAGES, PROGRAMS, SYSTEMS, evaluate, run_nix
from support.nix_surface import SURFACE, used_lib, used_packages


def test_flake_check_passes(tree: Path) -> None:
    done = run_nix(tree, "flake", "check", *OVERRIDES)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("system", SYSTEMS)
def test_packages_are_those_that_make_sense_there(tree: Path, system: str) -> None:
    found = evaluate(tree, f"packages.{system}", "builtins.mapAttrs (_: p: [ p.drvPath p.meta.description ])")
    assert found.keys() == PACKAGES[system] | {"default"}
    assert all(path.endswith(".drv") and len(description) > 20 for path, description in found.values())


@pytest.mark.parametrize("system", SYSTEMS)
def test_programs_point_into_packages_and_say_what_they_do(tree: Path, system: str) -> None:
    found = evaluate(tree, f"apps.{system}")
    assert found.keys() == PROGRAMS[system] | {"default"}
    for name in PROGRAMS[system]:
        assert found[name]["type"] == "app"
        assert found[name]["program"].endswith(f"-glm53-exl3-{name}/bin/glm53-exl3-{name}")
        assert found[name]["meta"]["description"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_other_outputs_evaluate(tree: Path, system: str) -> None:
    assert evaluate(tree, f"devShells.{system}.default.drvPath").endswith(".drv")
    assert evaluate(tree, f"formatter.{system}.drvPath").endswith(".drv")
    assert {"inputs", "locks", "module", "preflight", "evaluation"} <= set(
        evaluate(tree, f"checks.{system}", "builtins.attrNames")
    )


def test_outputs_that_belong_to_no_system_evaluate(tree: Path) -> None:
    assert evaluate(tree, "overlays", "builtins.mapAttrs (_: builtins.isFunction)") == {"default": True}
    assert evaluate(tree, "nixosModules", "builtins.mapAttrs (_: builtins.isFunction)") == {"default": True}
    template = evaluate(tree, "templates.default")
    assert {path.name for path in Path(template["path"]).iterdir()} == {"flake.nix", "configuration.nix"}


def test_only_the_named_outputs_are_there(tree: Path) -> None:
    done = run_nix(tree, "flake", "show", "--json", *OVERRIDES)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {
        "apps",
        "checks",
        "devShells",
        "formatter",
        "nixosModules",
        "overlays",
        "packages",
        "templates",
    }


def test_list_of_nixpkgs_attributes_is_what_the_files_use() -> None:
    listed = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert listed == {"lib": sorted(used_lib()), "pkgs": sorted(used_packages())}


def test_stub_has_the_listed_packages_and_no_more(tree: Path) -> None:
    listed = json.loads(SURFACE.read_text(encoding="utf-8"))["pkgs"]
    expression = 'builtins.attrNames (import ./tests/nixpkgs-stub { system = "x86_64-linux"; })'
    found = json.loads(run_nix(tree, "eval", "--impure", "--json", "--expr", expression).stdout)
    assert set(found) - {"callPackage", "config", "fetchTree", "lib", "newScope"} == set(listed)
