"""Make one environment of wheels: installed, every library findable, compiled.

    assemble.py --prefix OUT --python PYTHON --wheels FILE... [--library-path A:B] [--driver-path DIR]
                [--loader LD.SO] [--rules FILE]

The result is a virtual environment: `OUT/bin/python` is a link to PYTHON, packages lie in one site-packages, so that
the run paths of NVIDIA's wheels find one another. Nothing is resolved or downloaded: the wheels given are all.

Exits with 1 and one line for each library that nothing provides. What is in it stands in `OUT/share/glm53-exl3`.
Needs the `installer` package, readelf and patchelf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import elf
import resolve
from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

REPORT = "share/glm53-exl3/environment.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    options = _options(arguments)
    rules = json.loads(options.rules.read_text(encoding="utf-8")) if options.rules else {}
    conflicts = conflicting_files(options.wheels, rules.get("different_files", {}))
    if conflicts:
        print(*conflicts, sep="\n", file=sys.stderr)
        return 1
    version = options.python_version or _minor_version(options.python)
    # A link would not lead the interpreter to its own library.
    make_venv(options.prefix, options.python.resolve(), version)
    site = options.prefix / "lib" / f"python{version}" / "site-packages"
    for wheel in options.wheels:
        install_wheel(wheel, options.prefix, site)
    places = resolve.Places(
        options.prefix,
        [Path(part) for part in options.system_folders.split(":") if part],
        options.driver_path,
        rules.get("missing_libraries", {}),
        rules.get("opened_libraries", {}),
    )
    missing = link_libraries(places, options.loader)
    unexplained = [one for one in missing if not one.reason]
    for one in unexplained:
        print(
            f"error: library-missing: {one.path} needs {one.soname}, which no wheel and no given folder has",
            file=sys.stderr,
        )
    write_report(options.prefix / REPORT, options.wheels, missing)
    if options.compile:
        # Some packages hold templates that are no Python; they stay uncompiled.
        command = [str(options.python), "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
        subprocess.run([*command, str(site)], check=False, stdout=subprocess.DEVNULL)
    return 1 if unexplained else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--python", type=Path, required=True, help="interpreter the environment is for")
    parser.add_argument(
        "--python-version", help="its minor version; it is asked without, which one of another machine can't answer"
    )
    parser.add_argument("--wheels", type=Path, nargs="+", required=True)
    parser.add_argument("--library-path", dest="system_folders", default="", help="folders of system libraries")
    parser.add_argument("--driver-path", default="/run/opengl-driver/lib", help="folder of the driver at run time")
    parser.add_argument("--loader", default="", help="program interpreter for executables; as they are without")
    parser.add_argument("--rules", type=Path, help="JSON as rules.json beside this file")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return parser.parse_args(arguments)


def _minor_version(python: Path) -> str:
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def conflicting_files(wheels: Sequence[Path], excused: Mapping[str, str]) -> list[str]:
    """One line for each file that two wheels hold with different bytes; empty `__init__.py` of namespaces agree.

    Args:
        wheels: files.
        excused: files that may differ, and why.
    """
    owners: dict[str, dict[int, Path]] = defaultdict(dict)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    owners[entry.filename].setdefault(entry.CRC, wheel)
    return [
        f"error: file-conflict: {name} differs between {' and '.join(sorted(w.name for w in by_checksum.values()))}"
        for name, by_checksum in sorted(owners.items())
        if len(by_checksum) > 1 and name not in excused
    ]


def make_venv(prefix: Path, python: Path, version: str) -> None:
    """The links and the file by which the interpreter knows its environment."""
    folder = prefix / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", f"python{version}"):
        (folder / name).symlink_to(python)
    (prefix / "pyvenv.cfg").write_text(
        f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {version}\n", encoding="utf-8"
    )


def install_wheel(wheel: Path, prefix: Path, site: Path) -> None:
    """Put the files of a wheel where they belong, with its programs in `bin`."""
    destination = SchemeDictionaryDestination(
        {
            "purelib": str(site),
            "platlib": str(site),
            "scripts": str(prefix / "bin"),
            "data": str(prefix),
            "headers": str(prefix / "include" / wheel.name.split("-")[0]),
        },
        interpreter=str(prefix / "bin" / "python"),
        script_kind="posix",
        overwrite_existing=True,
    )
    with WheelFile.open(wheel) as source:
        install(source, destination, additional_metadata={"INSTALLER": b"glm53-exl3"})


def link_libraries(places: resolve.Places, loader: str) -> list[resolve.Missing]:
    """Give every file the folders it needs; the names that stay missing."""
    files = elf.read(elf.elf_files(places.root))
    changes, missing = resolve.plan(files, places)
    for change in changes:
        elf.add_search(change.path, change.folders, inherited=change.inherited)
    for file in files:
        if loader and file.loader:
            elf.set_loader(file.path, loader)
    return missing


def write_report(path: Path, wheels: Sequence[Path], missing: Sequence[resolve.Missing]) -> None:
    """What the environment is made of, and which libraries it does without."""
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        # The store puts a hash and a dash before the name.
        "wheels": sorted(wheel.name for wheel in wheels),
        "without": [{"file": one.path, "library": one.soname, "reason": one.reason} for one in missing if one.reason],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
