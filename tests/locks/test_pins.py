"""The wheels of pins.json: what the check says of wrong ones, how they are written, how Python reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lock_making import PINS
from pin_faults import shape_faults, unused_faults
from pin_making import written

from glm53_exl3.pins import load_pins
from support.tiny_locks import SYSTEM, hash_of, tiny_lock, tiny_pins

ROOT = Path(__file__).parents[2]


def pins_with_versions() -> dict[str, Any]:
    return {**tiny_pins(), "torchvision": "2.13.0", "triton": "2.13.0"} | {
        "wheels": tiny_pins()["wheels"]
        | {name: {"2.13.0": {SYSTEM: parts(name)}} for name in ("torchvision", "triton")}
    }


def parts(name: str) -> dict[str, str]:
    tags = {"python": "py3", "abi": "none", "platform": "any"}
    return {"distribution": name, **tags, "hash": hash_of(name)}


def test_right_pins_have_no_fault() -> None:
    assert list(shape_faults(pins_with_versions())) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash": "sha256-short"}, "'sha256-short' is no SHA-256 in SRI form"),
        ({"platform": "win_arm64"}, "triton-2.13.0-py3-none-win_arm64.whl cannot be installed there"),
        ({"distribution": "tritium"}, "the file is tritium-2.13.0-py3-none-any.whl"),
    ],
)
def test_a_wrong_pin_is_told(change: dict[str, str], message: str) -> None:
    pins = pins_with_versions()
    pins["wheels"]["triton"]["2.13.0"][SYSTEM].update(change)
    (fault,) = shape_faults(pins)
    assert message in fault.text


def test_a_stated_version_needs_a_wheel() -> None:
    pins = {**pins_with_versions(), "torch": "2.14.0"}
    (fault,) = shape_faults(pins)
    assert fault.text == "pins.json: torch 2.14.0 is stated, but no wheel of it is pinned"


def test_a_pin_that_no_lock_uses_is_told() -> None:
    pins = tiny_pins()
    pins["wheels"]["nvidia-odd"] = {"1": {SYSTEM: parts("nvidia_odd")}}
    (fault,) = unused_faults(pins, [tiny_lock()])
    assert fault.text == "pins.json: nvidia-odd 1 is pinned, but no lock uses it"


def test_rewriting_the_wheels_leaves_every_other_line() -> None:
    text = PINS.read_text(encoding="utf-8")
    wheels = json.loads(text)["wheels"]
    assert written(text, wheels) == text
    wheels["torch"]["2.13.0"]["aarch64-linux"]["hash"] = "changed"
    changed = written(text, wheels)
    differing = [new for old, new in zip(text.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert len(differing) == 1
    assert '"hash": "changed"' in differing[0]


def test_python_reads_what_nix_reads() -> None:
    link = ROOT / "nix/pins.json"
    assert link.is_symlink()
    assert link.resolve() == PINS
    pins = load_pins()
    raw = json.loads(link.read_text(encoding="utf-8"))
    wheel = pins.wheel("torch", pins.torch, "aarch64-linux")
    assert wheel.filename == "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl"
    assert wheel.hash == raw["wheels"]["torch"]["2.13.0"]["aarch64-linux"]["hash"]
    assert pins.nixpkgs.revision == raw["nixpkgs"]["revision"]
    assert {s.revision for s in pins.sources.values()} == {s["revision"] for s in raw["sources"].values()}


def test_python_finds_a_wheel_for_any_system_and_names_what_is_pinned() -> None:
    pins = load_pins()
    version = pins.runtimes["fork"].flashinfer_python
    assert pins.wheel("flashinfer-python", version, "x86_64-linux").platform == "any"
    with pytest.raises(LookupError, match=r"no wheel of vllm 0\.1 for aarch64-linux is pinned, only: 0\.32\.0 for"):
        pins.wheel("vllm", "0.1", "aarch64-linux")
