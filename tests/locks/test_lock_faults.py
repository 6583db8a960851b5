"""The check of the locks notices what it is for; every case starts from data without a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from lock_faults import lock_faults
from runtime_files import Exempt, RuntimeFile, Stated

from support.tiny_locks import SYSTEM, entry, hash_of, tiny_lock, tiny_pins

Damage = Callable[[dict[str, Any], dict[str, Any]], object]


def faults_of(lock: dict[str, Any], pins: dict[str, Any], file: RuntimeFile | None = None) -> list[str]:
    own = RuntimeFile(
        "demo",
        (SYSTEM,),
        tuple(Stated(line["requirement"], line["source"], line.get("build", False)) for line in lock["requirements"]),
        tuple(Exempt(**line) for line in lock["exceptions"]),
    )
    return [f"{fault.kind}: {fault.text}" for fault in lock_faults(lock, pins, file or own)]


def test_a_right_lock_has_no_fault() -> None:
    assert faults_of(tiny_lock(), tiny_pins()) == []


def locked(lock: dict[str, Any]) -> dict[str, Any]:
    return lock["systems"][SYSTEM]


def _flip_hash(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["torch"]["hash"] = hash_of("another file")


def _bump_pinned(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["nvidia-cublas"] = entry("nvidia-cublas", "13.1.9", [])


def _lose_pin(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    del pins["wheels"]["nvidia-cublas"]


def _other_torch(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    pins["torch"] = "2.14.0"


def _lose_entry(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    del locked(lock)["pigment"]


def _too_new(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"] = entry("pigment", "4.0", [])


def _lose_extra(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    del locked(lock)["paint"]["extras"]


def _satisfy_exception(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["sound"] = entry("sound", "1", [])
    locked(lock)["engine"]["requires"].append("sound>=1")


def _forget_exception(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    lock["exceptions"].clear()


def _invent_exception(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    lock["exceptions"].append({"distribution": "paint", "requires": "brush", "reason": "none"})


def _other_machine(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"]["platform"] = "manylinux_2_28_x86_64"


def _newer_glibc(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"]["platform"] = "manylinux_2_40_aarch64"


def _other_python(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"].update(python="cp311", abi="cp311")


def _hexadecimal(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"]["hash"] = "ab" * 32


def _not_normalised(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["Pig_Ment"] = entry("Pig-Ment", "1", [])


def _twice(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["Pigment"] = entry("pigment", "3.0rc1", [])


def _other_file(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["pigment"]["distribution"] = "paint"


def _orphan(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    locked(lock)["orphan"] = entry("orphan", "1", [])


def _build_only(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    lock["requirements"].append({"requirement": "cmake", "source": "hand", "build": True})
    locked(lock)["cmake"] = entry("cmake", "4", [])


def _unstated(lock: dict[str, Any], pins: dict[str, Any]) -> None:
    lock["requirements"].append({"requirement": "absent>=3", "source": "hand"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip_hash, f"bytes: demo, {SYSTEM}: torch 2.13.0: {hash_of('another file')}, pins.json has sha256-"),
        (_bump_pinned, f"bytes: demo, {SYSTEM}: nvidia-cublas 13.1.9: pins.json has for {SYSTEM}: 13.1"),
        (_lose_pin, "nvidia-cublas 13.1: torch needs it, pins.json has no wheel of it"),
        (_other_torch, "torch 2.13.0: pins.json has version 2.14.0"),
        (_lose_entry, "requirement: demo, aarch64-linux: paint requires pigment<4: nothing of that name is locked"),
        (_too_new, "paint requires pigment<4: 4.0 is locked"),
        (_lose_extra, "engine requires paint[blue]>=2: it is locked without the extra blue"),
        (_satisfy_exception, "stale: demo: the exception 'engine requires sound' is not needed"),
        (_forget_exception, "engine requires sound: nothing of that name is locked"),
        (_invent_exception, "stale: demo: the exception 'paint requires brush' is not needed"),
        (
            _other_machine,
            "tags: demo, aarch64-linux: pigment: pigment-3.0rc1-py3-none-manylinux_2_28_x86_64.whl cannot",
        ),
        (_newer_glibc, "pigment-3.0rc1-py3-none-manylinux_2_40_aarch64.whl cannot be installed on aarch64-linux"),
        (_other_python, "pigment-3.0rc1-cp311-cp311-any.whl cannot be installed"),
        (_hexadecimal, f"form: demo, aarch64-linux: pigment: '{'ab' * 32}' is no SHA-256 in SRI form"),
        (_not_normalised, "Pig_Ment: the name is not normalised, expected pig-ment"),
        (_twice, "form: demo, aarch64-linux: pigment is there twice"),
        (_other_file, "pigment: the file is one of paint: paint-3.0rc1-py3-none-any.whl"),
        (_orphan, "stale: demo, aarch64-linux: orphan: nothing asks for it"),
        (_build_only, "stale: demo, aarch64-linux: cmake: only the build needs it"),
        (_unstated, "requirement: demo, aarch64-linux: absent>=3 (hand): nothing of that name is locked"),
    ],
)
def test_a_damaged_lock_is_told_by_its_fault(damage: Damage, message: str) -> None:
    lock, pins = tiny_lock(), tiny_pins()
    damage(lock, pins)
    faults = faults_of(lock, pins)
    assert any(message in fault for fault in faults), faults


def test_a_lock_that_is_older_than_its_requirements_is_stale() -> None:
    file = RuntimeFile("demo", (SYSTEM,), (Stated("engine==1.0", "hand"), Stated("torch", "hand")), ())
    faults = faults_of(tiny_lock(), tiny_pins(), file)
    assert "stale: demo: requirements are not those of the .toml; run tools/locks/refresh.py" in faults
    assert "stale: demo: exceptions are not those of the .toml; run tools/locks/refresh.py" in faults


def test_the_hardest_faults_come_first() -> None:
    lock, pins = tiny_lock(), tiny_pins()
    for damage in (_orphan, _too_new, _other_machine, _flip_hash):
        damage(lock, pins)
    kinds = [fault.partition(":")[0] for fault in faults_of(lock, pins)]
    assert list(dict.fromkeys(kinds)) == ["bytes", "tags", "requirement", "stale"]
