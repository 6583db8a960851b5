"""docs/without-nix.md: its commands name files and options that exist, figures and errors are those of the sources."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from support.tiny_wheels import ROOT, TOOLS

TEXT = (ROOT / "docs" / "without-nix.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
PINS = json.loads((ROOT / "nix" / "pins.json").read_text(encoding="utf-8"))
LOCKS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "nix" / "locks").glob("*.json")}


@cache
def help_of(*command: str) -> str:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def options(line: str) -> set[str]:
    return set(re.findall(r"(?<=\s)--[a-z-]+", line.partition("#")[0]))


def commands(start: str) -> list[str]:
    found = [line for line in COMMANDS if line.startswith(start)]
    assert found, start
    return found


@pytest.mark.parametrize("line", commands("python tools/"))
def test_scripts_exist_with_their_options(line: str) -> None:
    script, *words = line.split()[1:]
    assert (ROOT / script).is_file()
    # A command of the script's own has its own options.
    names = takewhile(lambda word: not word.startswith("-"), words)
    assert options(line) <= set(re.findall(r"--[a-z-]+", help_of(sys.executable, "-B", script, *names)))


@pytest.mark.parametrize("line", commands("glm53-exl3 "))
def test_subcommands_exist_with_their_options(line: str) -> None:
    program = str(Path(sys.executable).with_name("glm53-exl3"))
    assert options(line) <= set(re.findall(r"--[a-z-]+", help_of(program, line.split()[1])))


@pytest.mark.parametrize("line", commands("sh wheelhouse/install.sh"))
def test_installer_has_the_options(line: str) -> None:
    assert options(line) <= set(re.findall(r"--[a-z-]+", help_of(sys.executable, "-B", str(TOOLS / "install.py"))))


def test_outputs_of_the_flake_exist() -> None:
    outputs = (ROOT / "nix" / "outputs.nix").read_text(encoding="utf-8")
    built = re.findall(r"\.#([a-z-]+)", "\n".join(commands("nix build")))
    assert built == ["wheelhouse", "wheelhouse-upstream"]
    assert all(f'"{name}"' in outputs for name in built)


def test_revision_and_wheel_of_the_kernels_are_the_pinned_ones() -> None:
    assert commands("git -C kernels")[0].endswith(PINS["exllamav3"]["revision"])
    assert f"{PINS['exllamav3']['repository']} kernels" in commands("git clone")[0]
    assert f"-{PINS['exllamav3']['version']}-cp312-cp312-linux_aarch64.whl" in "".join(commands("pip install"))


def test_figures_are_those_of_the_lock() -> None:
    entries = LOCKS["upstream"]["systems"]["aarch64-linux"]
    assert f"pip downloads {sum(entry['size'] for entry in entries.values()):,} bytes" in TEXT
    assert f"writes {len(entries)} lines" in TEXT


def test_conflicts_are_the_exceptions_of_the_locks() -> None:
    rows = {
        row.split(" | ")[0].strip("| "): row
        for row in TEXT.splitlines()
        if re.match(r"\| (upstream|fork|demo) \|", row)
    }
    assert LOCKS["upstream"]["exceptions"] == []
    assert "No broken requirements found." in rows["upstream"]
    for runtime in ("fork", "demo"):
        for exception in LOCKS[runtime]["exceptions"]:
            name = re.split(r"[=<>]", exception["requires"])[0]
            # vLLM's setup.py leaves it out, so that pip says nothing of it.
            assert name in rows[runtime] or name == "flashinfer-cubin"


def test_every_refusal_of_the_installer_is_in_the_tables_and_no_other() -> None:
    sources = [TOOLS / name for name in ("install.py", "checks.py", "link_cuda.py")]
    raised = {
        found
        for path in sources
        for found in re.findall(r"InstallError\(\s*\"([a-z-]+)\"", path.read_text(encoding="utf-8"))
    }
    raised |= set(re.findall(r"error: ([a-z-]+):", (TOOLS / "install.sh").read_text(encoding="utf-8")))
    raised |= set(re.findall(r"error: ([a-z-]+):", (TOOLS / "install.py").read_text(encoding="utf-8")))
    tables = re.findall(r"\| refused.*?\n\n", TEXT, re.DOTALL)
    documented = {
        name
        for table in tables
        for row in table.splitlines()[2:]
        for name in re.findall(r"`([a-z-]+)`", row.split(" | ")[0])
    }
    assert documented == raised


def test_tests_it_names_exist() -> None:
    for path in re.findall(r"pytest (tests/[\w./]+)", TEXT):
        assert (ROOT / path).exists(), path
