"""Make a wheelhouse: what one machine compiled, and what another needs to install it without compiling.

    make.py --lock LOCK --system SYSTEM --pins PINS --output DIR [--licences NAME=TREE]... [--compiled-in DIR] WHEEL...

WHEELs are those built here. In DIR lie, besides them, `requirements.txt` with a hash for everything that the index has,
`wheelhouse.json` with what the installer checks, `NOTICE` and `licences` with the terms of what is handed on,
`SHA256SUMS`, and the installer. All is checked before anything is written; the same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from notice import notice
from requirements import Entries, entries, requirements
from wheel_contents import Version, Wheel, files_of, fits, is_inside, platform_need, read_wheel

HERE = Path(__file__).parent
#: Parts of the installer. Python's files import one another, and nothing else of this repository.
INSTALLER = ("install.sh", "install.py", "install_error.py", "checks.py", "link_cuda.py")
#: Licence files by name of the distribution or source, each by relative path.
Terms = Mapping[str, Mapping[str, bytes]]


class MakeError(Exception):
    """A wheelhouse of this would not work, or must not be handed on."""

    def __init__(self, identity: str, what: str, hint: str) -> None:
        super().__init__(f"error: {identity}: {what}\n\nhint: {hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    options = _options(arguments)
    lock = json.loads(options.lock.read_text(encoding="utf-8"))
    pins = json.loads(options.pins.read_text(encoding="utf-8"))
    trees = {name: files_of(Path(tree)) for name, _, tree in (each.partition("=") for each in options.licences)}
    try:
        chosen = entries(lock, options.system)
        wheels = read_wheels(options.wheels, lock["python"], options.system)
        check_lock(wheels, chosen)
        compiled_in = sources_of(options.compiled_in, trees)
        terms = terms_of(wheels, trees, compiled_in)
        if options.output.exists() and any(options.output.iterdir()):
            raise MakeError("output-in-use", f"{options.output} is not empty", f"rm -r {options.output}")
    except (MakeError, KeyError, ValueError) as error:
        print(error.args[0], file=sys.stderr)
        return 1
    texts = {
        "requirements.txt": requirements(lock, chosen),
        "wheelhouse.json": json.dumps(manifest(lock, chosen, pins, options.system, wheels), indent=1) + "\n",
        "NOTICE": notice(lock["runtime"], wheels, pins, sorted(compiled_in)),
    }
    write(options.output, wheels, terms, compiled_in, texts)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--system", required=True, help="aarch64-linux or x86_64-linux")
    parser.add_argument("--pins", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--licences",
        action="append",
        default=[],
        metavar="NAME=TREE",
        help="folder with the licence files of a wheel, or of a source in one, that come without",
    )
    parser.add_argument(
        "--compiled-in", type=Path, metavar="DIR", help="a folder with licence files for each source in the wheels"
    )
    parser.add_argument("wheels", type=Path, nargs="+", metavar="WHEEL")
    return parser.parse_args(arguments)


def read_wheels(paths: Sequence[Path], python: str, system: str) -> list[Wheel]:
    """Read all wheels.

    Raises:
        ValueError: one cannot be read.
        MakeError: one is for another Python or machine.
    """
    for path in paths:
        if not fits(path, python, system.partition("-")[0]):
            raise MakeError(
                "wheel-tags", f"{path.name} is not for {python} on {system}", "build it where the wheelhouse is for"
            )
    try:
        return sorted((read_wheel(path) for path in paths), key=lambda wheel: wheel.name)
    except ValueError as error:
        raise ValueError(f"error: wheel-unreadable: {error}") from error


def check_lock(wheels: Sequence[Wheel], chosen: Entries) -> None:
    """Refuse a distribution that would be installed twice; the second would overwrite part of the first.

    Raises:
        MakeError: there is one.
    """
    for name, count in Counter(wheel.name for wheel in wheels).items():
        if count > 1:
            raise MakeError("wheel-twice", f"{count} wheels are of {name}", "leave one")
        if name in chosen:
            raise MakeError(
                "wheel-in-lock",
                f"{name} is a wheel of the wheelhouse, and the lock has {chosen[name]['version']} of it",
                "leave the wheel out, or take it out of the lock",
            )


def sources_of(folder: Path | None, trees: Terms) -> Terms:
    """Licence files of each source that is compiled in; those given by name fill what the folder lacks.

    Raises:
        MakeError: a source has none.
    """
    folders = sorted(folder.iterdir()) if folder else []
    found = {path.name: files_of(path) or trees.get(path.name, {}) for path in folders}
    _check_terms(found, "source")
    return found


def terms_of(wheels: Sequence[Wheel], trees: Terms, compiled_in: Terms) -> Terms:
    """Licence files of each wheel, its own and those given by name.

    Raises:
        MakeError: a wheel has none, or licences were given for something else.
    """
    found = {wheel.name: {**trees.get(wheel.name, {}), **wheel.terms} for wheel in wheels}
    if unknown := sorted(trees.keys() - found.keys() - compiled_in.keys()):
        raise MakeError(
            "licence-unused",
            f"--licences {unknown[0]}=... belongs to no wheel and no source",
            f"one of {', '.join(sorted(found.keys() | compiled_in.keys()))}",
        )
    _check_terms(found, "wheel")
    return found


def _check_terms(found: Terms, what: str) -> None:
    if without := sorted(name for name, files in found.items() if not files):
        raise MakeError(
            "licence-missing",
            f"no licence file of the {what} {', '.join(without)}, without which it must not be handed on",
            f"--licences {without[0]}=FOLDER with its licence",
        )


def manifest(
    lock: Mapping[str, Any], chosen: Entries, pins: Mapping[str, Any], system: str, wheels: Sequence[Wheel]
) -> dict[str, Any]:
    """What the installer checks before and after."""
    needs: dict[str, Version] = {"GLIBC": max((platform_need(entry) for entry in chosen.values()), default=())}
    for wheel in wheels:
        for library, version in wheel.needs.items():
            needs[library] = max(needs.get(library, ()), version)
    return {
        "runtime": lock["runtime"],
        "python": lock["python"],
        "system": system,
        "torch": pins["torch"],
        "cuda": pins["cuda"] if lock["runtime"] in pins["runtimes"] else None,
        "arch_list": pins["gpu"]["arch_list"],
        "needs": {library: ".".join(map(str, version)) for library, version in sorted(needs.items()) if version},
        "wheel_bytes": sum(entry["size"] for entry in chosen.values())
        + sum(wheel.path.stat().st_size for wheel in wheels),
        "wheels": [wheel.path.name for wheel in wheels],
        "modules": [module for wheel in wheels for module in wheel.modules],
        # pip would report these as broken; each has a reason.
        "exceptions": lock["exceptions"],
    }


def write(output: Path, wheels: Sequence[Wheel], terms: Terms, compiled_in: Terms, texts: Mapping[str, str]) -> None:
    """Write the folder, SHA256SUMS last."""
    (output / "wheels").mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        shutil.copyfile(wheel.path, output / "wheels" / wheel.path.name)
    for place, all_terms in (("wheels", terms), ("compiled-in", compiled_in)):
        for name, files in all_terms.items():
            for relative, content in files.items():
                if is_inside(relative):
                    path = output / "licences" / place / name / relative
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    for name in INSTALLER:
        shutil.copyfile(HERE / name, output / name)
    (output / "install.sh").chmod(0o755)
    (output / "SHA256SUMS").write_text(checksums(output), encoding="utf-8")


def checksums(folder: Path) -> str:
    """Lines that `sha256sum --check` reads, for every file of a folder."""
    lines = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            lines.append(f"{digest}  {path.relative_to(folder).as_posix()}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
