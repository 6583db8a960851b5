"""The goldens by systemd's own judgement."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.nixos_module import CASES, GOLDENS, PROGRAM, ROOT, goldens_of
from support.programs import require_program

#: Keys that systemd 252, Debian's, does not know yet, by the release that brought them.
NEWER = {"RestartMode": 254, "RestartSteps": 254, "RestartMaxDelaySec": 254}
MOST_EXPOSED = 2.0
UNITS = sorted(path.relative_to(GOLDENS) for path in GOLDENS.glob("*/*.service"))


@pytest.fixture(autouse=True)
def _needs_systemd() -> None:
    require_program("systemd-analyze")


def release() -> int:
    said = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"systemd (\d+)", said)[0])


def install(name: str, folder: Path) -> list[str]:
    """The units of a golden in a folder, with a program that exists, and without what this systemd does not know."""
    program = folder / "glm53-exl3"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unknown = [key for key, since in NEWER.items() if release() < since]
    written = []
    for file, text in goldens_of(name).items():
        if not file.endswith(".service"):
            continue
        kept = [line for line in PROGRAM.sub(str(program), text).splitlines() if line.partition("=")[0] not in unknown]
        (folder / file).write_text("\n".join(kept) + "\n")
        written.append(str(folder / file))
    return written


def verify(units: list[str]) -> str:
    # Its exit code is 0 for a key that it does not know: what it says is the verdict.
    return subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True).stderr


@pytest.mark.parametrize("name", CASES)
def test_systemd_finds_nothing_to_say(name: str, tmp_path: Path) -> None:
    assert verify(install(name, tmp_path)) == ""


def test_systemd_would_have_said_something(tmp_path: Path) -> None:
    # Otherwise the test above would prove nothing.
    (unit,) = install("minimal", tmp_path)
    broken = Path(unit).read_text().replace("PrivateTmp=true", "PrivateTemp=true").replace("UMask=0077", "UMask=x")
    Path(unit).write_text(broken)
    said = verify([unit])
    assert "PrivateTemp" in said
    assert "Failed to parse mode value" in said


def exposure(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True).stdout
    return float(re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)[0])


@pytest.mark.parametrize("unit", UNITS, ids=str)
def test_exposure_is_what_the_document_says_and_at_most_two(unit: Path) -> None:
    found = exposure(GOLDENS / unit)
    assert found <= MOST_EXPOSED
    if release() != 252:
        pytest.skip(f"the document has the figures of systemd 252, and this is {release()}")
    row = f"| `{unit.parts[0]}` | `{unit.name}` | {found} |"
    assert row in (ROOT / "docs" / "nixos.md").read_text(encoding="utf-8")


def test_an_unguarded_unit_is_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "bare.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert exposure(unit) > 9
