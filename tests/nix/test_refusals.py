"""What the flake refuses, each with the sentence that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.nix_flake import OVERRIDES, run_nix


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    change(value)
    path.write_text(json.dumps(value), encoding="utf-8")


def refusal(tree: Path, *arguments: str) -> str:
    """What Nix says on one line, as it breaks its own."""
    done = run_nix(tree, *arguments, *OVERRIDES)
    assert done.returncode != 0, "it was accepted"
    return re.sub(r"\s+", " ", done.stderr)


def pins_of(tree: Path) -> Path:
    return tree / "python" / "src" / "glm53_exl3" / "pins.json"


def test_wheel_with_other_bytes_is_refused_with_both_hashes(own_tree: Path) -> None:
    flipped = "sha256-" + "A" * 43 + "="
    lock = own_tree / "nix" / "locks" / "demo.json"
    entry = json.loads(lock.read_text(encoding="utf-8"))["systems"]["x86_64-linux"]["mdurl"]
    change_json(lock, lambda value: value["systems"]["x86_64-linux"]["mdurl"].update(hash=flipped))
    said = refusal(own_tree, "build", "--no-link", ".#preflight")
    assert "hash mismatch in fixed-output derivation" in said
    assert f"specified: {flipped}" in said
    assert f"got: {entry['hash']}" in said


def test_flipped_hash_of_a_pinned_wheel_fails_the_check_of_locks(own_tree: Path) -> None:
    wheel = json.loads(pins_of(own_tree).read_text(encoding="utf-8"))["wheels"]["torch"]["2.13.0"]["aarch64-linux"]
    flipped = wheel["hash"][:-3] + ("AA=" if not wheel["hash"].endswith("AA=") else "BB=")
    change_json(
        pins_of(own_tree), lambda value: value["wheels"]["torch"]["2.13.0"]["aarch64-linux"].update(hash=flipped)
    )
    said = refusal(own_tree, "build", "--no-link", "-L", ".#checks.x86_64-linux.locks")
    assert "torch 2.13.0" in said
    assert flipped in said
    assert wheel["hash"] in said


def test_missing_pin_is_named_with_those_that_are_there(own_tree: Path) -> None:
    change_json(pins_of(own_tree), lambda value: value["wheels"].pop("nvidia-cuda-nvcc"))
    said = refusal(own_tree, "eval", ".#packages.aarch64-linux.serve-upstream.drvPath")
    assert "pins.json pins no wheel of `nvidia-cuda-nvcc`; there are: cuda-bindings, " in said


def test_wheel_that_is_not_pinned_for_a_system_is_named(own_tree: Path) -> None:
    change_json(pins_of(own_tree), lambda value: value["wheels"]["nvidia-nvvm"]["13.0.88"].pop("aarch64-linux"))
    said = refusal(own_tree, "eval", ".#packages.aarch64-linux.serve-upstream.drvPath")
    assert "pins.json has no wheel of `nvidia-nvvm` 13.0.88 for aarch64-linux, only for x86_64-linux" in said


def test_lock_without_a_distribution_that_is_needed_is_refused(own_tree: Path) -> None:
    change_json(own_tree / "nix" / "locks" / "demo.json", lambda value: value["systems"]["x86_64-linux"].pop("rich"))
    said = refusal(own_tree, "eval", ".#packages.x86_64-linux.preflight.drvPath")
    assert "the lock of `demo` has no `rich` for x86_64-linux; run tools/locks/refresh.py" in said


def test_gpu_runtime_elsewhere_than_on_a_spark_is_refused(tree: Path) -> None:
    expression = (
        'builtins.getAttr "drvPath" (import ./tests/nixpkgs-stub { system = "x86_64-linux"; '
        "overlays = [ (import ./nix/overlay.nix { inputs = { }; }) ]; }).glm53-exl3.serve-upstream"
    )
    said = refusal(tree, "eval", "--impure", "--expr", expression)
    assert "the lock of `upstream` holds wheels for aarch64-linux, not for x86_64-linux" in said


def test_lock_file_of_another_revision_is_refused(own_tree: Path) -> None:
    other = "0" * 40
    change_json(own_tree / "flake.lock", lambda value: value["nodes"]["vllm-src"]["locked"].update(rev=other))
    said = refusal(own_tree, "build", "--no-link", "-L", ".#checks.x86_64-linux.inputs")
    assert (
        f"flake.lock: locked.rev of vllm-src is {other}, pins.json says 878631b6079d2cf9fb80830ef9cb41b43aded098"
        in said
    )
    assert "hint: python tools/flake/inputs.py --write" in said


def test_patch_that_is_not_in_the_series_stops_evaluation(own_tree: Path) -> None:
    (own_tree / "patches" / "vllm" / "0001-fix-something.patch").write_text("--- a/x\n+++ b/x\n", encoding="utf-8")
    said = refusal(own_tree, "eval", ".#packages.aarch64-linux.vllm-fork.drvPath")
    assert "0001-fix-something.patch" in said
    assert "series" in said


def test_attribute_that_nixpkgs_has_lost_is_named(own_tree: Path) -> None:
    change_json(own_tree / "tests" / "nixpkgs-surface.json", lambda value: value["pkgs"].append("python39"))
    said = refusal(own_tree, "eval", ".#checks.x86_64-linux.nixpkgs-surface.drvPath")
    assert "nixpkgs has no python39, which tests/nixpkgs-surface.json lists" in said
