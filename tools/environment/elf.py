"""ELF files of a folder: what they ask for and where they look, by binutils and patchelf.

Both tools read files of any architecture, so an aarch64 environment can be checked on an x86_64 machine.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF"
_ENTRY = re.compile(r"\((NEEDED|SONAME|RPATH|RUNPATH)\)[^\[]*\[([^\]]*)\]")
_LOADER = re.compile(r"Requesting program interpreter: ([^\]]+)\]")
#: Command lines have a limit; a few hundred paths stay far below it.
_FILES_A_CALL = 200


@dataclass(frozen=True)
class Elf:
    """One dynamic ELF file.

    Attributes:
        path: where it lies.
        needed: sonames it asks for.
        soname: its own name, empty without one.
        search: its run path as written, `$ORIGIN` included.
        loader: its program interpreter, empty for a library.
        inherited: whether its run path is the old kind, which the libraries that it loads search too.
    """

    path: Path
    needed: tuple[str, ...] = ()
    soname: str = ""
    search: tuple[str, ...] = ()
    loader: str = ""
    inherited: bool = False


def elf_files(folder: Path) -> list[Path]:
    """ELF files below a folder, links left out, in order of their paths."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if path.is_symlink() or not path.is_file():
                continue
            with path.open("rb") as file:
                if file.read(4) == _MAGIC:
                    found.append(path)
    return sorted(found)


def read(paths: Sequence[Path]) -> list[Elf]:
    """Dynamic sections of files; static ones and object files come back with nothing in them.

    Raises:
        subprocess.CalledProcessError: readelf could not read one of them.
    """
    read_files: list[Elf] = []
    for first in range(0, len(paths), _FILES_A_CALL):
        batch = paths[first : first + _FILES_A_CALL]
        # /dev/null makes readelf print names of files for a single one too.
        command = ["readelf", "-d", "-l", "-W", os.devnull, *map(str, batch)]
        environment = {**os.environ, "LC_ALL": "C"}
        text = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
        sections = dict(_sections(text))
        missing = [path for path in batch if str(path) not in sections]
        if missing:
            raise subprocess.CalledProcessError(1, [*command[:4], str(missing[0])])
        read_files += [_parse(path, sections[str(path)]) for path in batch]
    return read_files


def _sections(text: str) -> Iterable[tuple[str, str]]:
    for section in re.split(r"^File: ", text, flags=re.MULTILINE)[1:]:
        name, _, body = section.partition("\n")
        yield name, body


def _parse(path: Path, body: str) -> Elf:
    entries = _ENTRY.findall(body)
    search = [part for kind, value in entries if kind in ("RPATH", "RUNPATH") for part in value.split(":") if part]
    loader = _LOADER.search(body)
    return Elf(
        path,
        tuple(value for kind, value in entries if kind == "NEEDED"),
        next((value for kind, value in entries if kind == "SONAME"), ""),
        tuple(search),
        loader[1] if loader else "",
        any(kind == "RPATH" for kind, _ in entries),
    )


def add_search(path: Path, folders: Sequence[str], *, inherited: bool) -> None:
    """Append folders to the run path of a file; what stands there already stays first.

    Args:
        path: the file.
        folders: to append.
        inherited: keep the old kind of run path. torch's serves libraries that others open by name.

    Raises:
        subprocess.CalledProcessError: patchelf refused.
    """
    _patch(path, [*(["--force-rpath"] if inherited else []), "--add-rpath", ":".join(folders)])


def set_loader(path: Path, loader: str) -> None:
    """Change the program interpreter of an executable.

    Raises:
        subprocess.CalledProcessError: patchelf refused.
    """
    _patch(path, ["--set-interpreter", loader])


def _patch(path: Path, arguments: Sequence[str]) -> None:
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    subprocess.run(["patchelf", *arguments, str(path)], check=True)
    path.chmod(mode)
