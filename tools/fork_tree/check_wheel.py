"""What a wheel of vLLM can run on a GPU: which device code its extensions carry, and which C library they ask for.

    check_wheel.py WHEEL --capability 12.1 --require GLOB... [--cuobjdump P] [--readelf P] > kernels.json

Exits with 1 when no extension matches one of the patterns, or when one that does has no machine code for the GPU.
The report, on standard output, is JSON: for each extension its device code by architecture, whether any of it runs on
the GPU (as machine code, or compiled by the driver from PTX), and the newest symbol versions of glibc and libstdc++
that it needs, which decide where the wheel can be installed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

_LISTED = re.compile(r"\.(sm_\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)
_NOTHING = re.compile(r"does not contain device code|No (?:ELF|PTX) file found")
_SYMBOL_VERSION = re.compile(r"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\b")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(options.wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        report = {name: _described(Path(archive.extract(name, folder)), options) for name in sorted(names)}
    json.dump({"capability": options.capability, "extensions": report}, sys.stdout, indent=2)
    print()
    faults = [fault for pattern in options.require for fault in _faults(report, pattern, options.capability)]
    for fault in faults:
        print(f"error: kernels-missing: {fault}", file=sys.stderr)
    return 1 if faults else 0


def runs_on(architecture: str, capability: str) -> bool:
    """Whether machine code for `architecture` (sm_120, sm_121a ...) runs on a GPU of `capability` (12.1).

    Plain code runs on the same major version from its minor version on, `f` likewise within its family, `a` on its own
    version only. cuobjdump 13 lists code of the family sm_120f as sm_120.
    """
    number, kind = re.fullmatch(r"sm_(\d+)([af]?)", architecture).groups()  # type: ignore[union-attr]
    major, minor = int(number[:-1]), int(number[-1])
    wanted_major, wanted_minor = map(int, capability.split("."))
    if kind == "a":
        return (major, minor) == (wanted_major, wanted_minor)
    return major == wanted_major and minor <= wanted_minor


def compiles_for(architecture: str, capability: str) -> bool:
    """Whether a driver can compile PTX of `architecture` for `capability`: plain PTX is good for everything newer."""
    number, kind = re.fullmatch(r"sm_(\d+)([af]?)", architecture).groups()  # type: ignore[union-attr]
    if kind:
        return runs_on(architecture, capability)
    return (int(number[:-1]), int(number[-1])) <= tuple(map(int, capability.split(".")))


def _described(path: Path, options: argparse.Namespace) -> dict[str, object]:
    machine = _architectures(path, options.cuobjdump, "--list-elf")
    ptx = _architectures(path, options.cuobjdump, "--list-ptx")
    newest: dict[str, tuple[int, ...]] = {}
    for library, version in _SYMBOL_VERSION.findall(_output([options.readelf, "--version-info", "--wide", str(path)])):
        newest[library] = max(newest.get(library, ()), tuple(map(int, version.split("."))))
    return {
        "machine_code": machine,
        "ptx": ptx,
        "runs": any(runs_on(one, options.capability) for one in machine),
        "compiled_by_driver": any(compiles_for(one, options.capability) for one in ptx),
        "needs": {library: ".".join(map(str, version)) for library, version in sorted(newest.items())},
    }


def _architectures(path: Path, cuobjdump: str, question: str) -> list[str]:
    done = subprocess.run([cuobjdump, question, str(path)], capture_output=True, text=True, check=False)
    # It fails where there is nothing to list; anything else must not pass for that.
    if done.returncode and not _NOTHING.search(done.stdout + done.stderr):
        raise RuntimeError(f"{cuobjdump} {question} {path.name} failed: {done.stdout}{done.stderr}")
    return sorted(set(_LISTED.findall(done.stdout)))


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _faults(report: dict[str, dict[str, object]], pattern: str, capability: str) -> list[str]:
    matching = {name: one for name, one in report.items() if fnmatch.fnmatch(Path(name).name, pattern)}
    if not matching:
        return [f"the wheel has no extension {pattern}; it has {', '.join(report) or 'none at all'}"]
    return [
        f"{name} has no machine code that runs on {capability}; it has {_sentence(one['machine_code'])}"
        for name, one in matching.items()
        if not one["runs"]
    ]


def _sentence(names: object) -> str:
    return ", ".join(names) if isinstance(names, list) and names else "none"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--capability", required=True, help="of the GPU, as 12.1")
    parser.add_argument("--require", action="append", default=[], metavar="GLOB", help="extensions that must run on it")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--readelf", default="readelf")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
