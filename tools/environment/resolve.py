"""Where each library of an environment is found, worked out before anything is changed. Pure.

Wheels leave libstdc++, zlib and the driver to the system and find one another by run paths such as
`$ORIGIN/../../nvidia/cu13/lib`. On a machine whose loader searches no system folders (NixOS, and Nix on any system)
every other name has to be given a folder too, or an import fails weeks later.
"""

from __future__ import annotations

import fnmatch
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elf import Elf

#: The C library, which the interpreter brings, and the loader itself.
LIBC = frozenset(
    {
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "librt.so.1",
        "libutil.so.1",
        "libpthread.so.0",
        "libresolv.so.2",
        "libanl.so.1",
        "ld-linux-aarch64.so.1",
        "ld-linux-x86-64.so.2",
    }
)
#: Come with the driver of the machine, in its own version.
DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvidia-nvvm.so.4")


@dataclass(frozen=True)
class Change:
    """What one file needs.

    Attributes:
        path: the file.
        folders: to append to its run path.
        inherited: whether that run path is the old kind.
    """

    path: Path
    folders: tuple[str, ...]
    inherited: bool


@dataclass(frozen=True)
class Missing:
    """A name that nothing provides.

    Attributes:
        path: the file that asks, relative to the environment.
        soname: what it asks for.
        reason: why it may stay missing; empty when nobody said so.
    """

    path: str
    soname: str
    reason: str


@dataclass(frozen=True)
class Places:
    """Where libraries may be.

    Attributes:
        root: the environment.
        system_folders: folders of system libraries, in the order in which they are searched.
        driver_folder: where the driver's libraries will be when the environment is used.
        optional: pattern of a path in the environment -> pattern of a soname -> why nobody needs that library.
        opened: pattern of a path -> sonames that the file opens by name while it runs, as far as they exist.
    """

    root: Path
    system_folders: Sequence[Path]
    driver_folder: str
    optional: Mapping[str, Mapping[str, str]]
    opened: Mapping[str, Sequence[str]]


def plan(files: Sequence[Elf], places: Places) -> tuple[list[Change], list[Missing]]:
    """Folders that each file has to be given, and names that stay missing."""
    inside = _providers(files)
    changes, missing = [], []
    for file in files:
        relative = file.path.relative_to(places.root).as_posix()
        opened = [
            name for pattern, names in places.opened.items() if fnmatch.fnmatch(relative, pattern) for name in names
        ]
        folders: list[str] = []
        for soname in [*file.needed, *opened]:
            folder = _folder(file, soname, inside, places)
            if folder is None and soname in file.needed:
                missing.append(Missing(relative, soname, _reason(relative, soname, places.optional)))
            elif folder and folder not in folders:
                folders.append(folder)
        if folders:
            changes.append(Change(file.path, tuple(folders), file.inherited))
    return changes, missing


def _folder(file: Elf, soname: str, inside: Mapping[str, list[Path]], places: Places) -> str | None:
    """Folder to add, empty when the name is found already, None when nothing has it."""
    if soname in LIBC or any((folder / soname).exists() for folder in _search(file)):
        return ""
    if soname in DRIVER:
        return places.driver_folder
    for provider in inside.get(soname, []):
        relative = os.path.relpath(provider.parent, file.path.parent)
        return "$ORIGIN" if relative == "." else f"$ORIGIN/{relative}"
    return next((str(folder) for folder in places.system_folders if (folder / soname).exists()), None)


def _search(file: Elf) -> list[Path]:
    """Folders that a file names relative to itself. Absolute ones are those of the machine that made the wheel."""
    origin = str(file.path.parent)
    relative = [part.replace("${ORIGIN}", "$ORIGIN") for part in file.search]
    return [Path(part.replace("$ORIGIN", origin)) for part in relative if part.startswith("$ORIGIN")]


def _providers(files: Sequence[Elf]) -> dict[str, list[Path]]:
    """Libraries of the environment by the file name under which the loader would look for them."""
    providers: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        if not file.loader:
            providers[file.path.name].append(file.path)
    return providers


def _reason(path: str, soname: str, optional: Mapping[str, Mapping[str, str]]) -> str:
    for pattern, reasons in optional.items():
        if fnmatch.fnmatch(path, pattern):
            return next((why for name, why in reasons.items() if fnmatch.fnmatch(soname, name)), "")
    return ""
