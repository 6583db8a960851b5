"""Requirements that a vLLM tree states for the wheel of its CUDA build, and for building it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

FOLDER = "requirements"
#: The machine that the runtime is for.
TARGET = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.0",
    "python_version": "3.12",
    "sys_platform": "linux",
}
#: Left out of the wheel by the tree's setup.py, because no index has it; the reason stands there.
_LEFT_OUT_BY_SETUP = "flashinfer-cubin"


def asked_by_wheel(tree: Path) -> Iterator[tuple[str, Requirement]]:
    """File and requirement of each line of requirements/cuda.txt, and of what it includes, that applies to the target.

    Raises:
        FileNotFoundError: a requirements file is missing.
    """
    left_out = _LEFT_OUT_BY_SETUP if _LEFT_OUT_BY_SETUP in (tree / "setup.py").read_text(encoding="utf-8") else ""
    for file, requirement in _of_file(tree, "cuda.txt"):
        if requirement.name != left_out and _applies(requirement):
            yield file, requirement


def asked_by_build(tree: Path) -> list[Requirement]:
    """`build-system.requires` of pyproject.toml that apply to the target."""
    with (tree / "pyproject.toml").open("rb") as file:
        lines = tomllib.load(file)["build-system"]["requires"]
    return [requirement for requirement in map(Requirement, lines) if _applies(requirement)]


def _of_file(tree: Path, name: str) -> Iterator[tuple[str, Requirement]]:
    for line in (tree / FOLDER / name).read_text(encoding="utf-8").splitlines():
        text = line.partition(" #")[0].strip()
        if text.startswith("-r "):
            yield from _of_file(tree, text.removeprefix("-r ").strip())
        elif text and not text.startswith(("#", "-")):
            yield f"{FOLDER}/{name}", Requirement(text)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(dict(TARGET))
