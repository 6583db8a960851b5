"""What has to be known of a wheel before it is handed on: terms, tags, modules, and the C libraries it asks for."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

#: Names under which projects keep their terms.
TERMS = re.compile(r"(licen[sc]e|copying|notice)[^/]*", re.IGNORECASE)
_LICENCE_FILE = re.compile(r"[^/]+\.dist-info/(?:licenses/(.+)|((?:licen[sc]e|copying|notice)[^/]*))", re.IGNORECASE)
#: As a string of an ELF file's own, so with the zero byte that ends it.
_SYMBOL_VERSION = re.compile(rb"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\x00")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")

Version = tuple[int, ...]


@dataclass(frozen=True)
class Wheel:
    """A wheel that is handed on.

    Attributes:
        name: of the distribution, lower case with dashes.
        licence: as its metadata has it; empty when they say nothing.
        terms: its licence files by relative path.
        modules: extension modules at its top, which can be imported by that name.
        needs: newest symbol versions of GLIBC and GLIBCXX that its libraries ask for.
    """

    path: Path
    name: str
    version: str
    licence: str
    terms: Mapping[str, bytes]
    modules: tuple[str, ...]
    needs: Mapping[str, Version]


def read_wheel(path: Path) -> Wheel:
    """Read a wheel.

    Raises:
        ValueError: it is none.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = next((name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)), None)
            if metadata is None:
                raise ValueError(f"{path} has no METADATA")
            fields = Parser().parsestr(archive.read(metadata).decode("utf-8"))
            terms = {
                match[1] or match[2]: archive.read(name) for name in names if (match := _LICENCE_FILE.fullmatch(name))
            }
            libraries = (archive.read(name) for name in names if name.endswith(".so"))
            return Wheel(
                path,
                normalise(fields["Name"]),
                fields["Version"],
                (fields["License-Expression"] or fields["License"] or "").partition("\n")[0],
                terms,
                tuple(sorted(name.partition(".")[0] for name in names if re.fullmatch(r"[^/]+\.so", name))),
                symbol_versions(libraries),
            )
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def symbol_versions(libraries: Iterable[bytes]) -> dict[str, Version]:
    """Newest versions of GLIBC and GLIBCXX that shared libraries name, and so may need."""
    newest: dict[str, Version] = {}
    for content in libraries:
        for library, version in _SYMBOL_VERSION.findall(content):
            name = library.decode()
            newest[name] = max(newest.get(name, ()), tuple(map(int, version.split(b"."))))
    return newest


def platform_need(entry: Mapping[str, Any]) -> Version:
    """The glibc that the platform tag of an entry of a lock promises to be content with; empty without a promise."""
    return min((tuple(map(int, found)) for found in _MANYLINUX.findall(entry["platform"])), default=())


def fits(path: Path, python: str, machine: str) -> bool:
    """Whether the tags of a wheel's file name are those of a Python (`cp312`) and a machine (`aarch64`)."""
    tags = path.stem.split("-")[-3:]
    if len(tags) != 3:
        return False
    pythons, abis, platforms = (tag.split(".") for tag in tags)
    right_python = python in pythons or "py3" in pythons or "abi3" in abis
    return right_python and any(one == "any" or one.endswith(f"_{machine}") for one in platforms)


def files_of(tree: Path) -> dict[str, bytes]:
    """Licence files at the top of a source tree, by name."""
    return {
        path.name: path.read_bytes() for path in sorted(tree.iterdir()) if path.is_file() and TERMS.fullmatch(path.name)
    }


def normalise(name: str) -> str:
    """A distribution's name as locks have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_inside(relative: str) -> bool:
    """Whether a path out of an archive stays below the folder it is written to."""
    path = PurePosixPath(relative)
    return not path.is_absolute() and ".." not in path.parts
