"""What is checked before anything is written: machine, Python, C libraries, the wheelhouse's files, the target."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from install_error import InstallError, listed

#: Written first and removed last, so that a half-made environment is known for what it is.
UNFINISHED = ".installation-unfinished"
#: Bytes on the disk while it works, for each byte of a wheel: unpacked and compiled 2.1 (docs/without-nix.md), pip's
#: temporary files 1, its cache 1, and some to spare.
_DISK_FACTOR = 4.5


def check_files(folder: Path) -> None:
    """Compare every file with SHA256SUMS; all that differ are named.

    Raises:
        InstallError: one does.
    """
    differing, listed_names = [], {"SHA256SUMS"}
    sums = folder / "SHA256SUMS"
    for line in sums.read_text(encoding="utf-8").splitlines() if sums.is_file() else [f"{'':64}  SHA256SUMS"]:
        digest, _, name = line.partition("  ")
        listed_names.add(name)
        path = folder / name
        if not path.is_file():
            differing.append(f"{name}: missing")
        elif _sha256(path) != digest:
            differing.append(f"{name}: {path.stat().st_size} bytes with another hash")
    wheels = {f"wheels/{path.name}" for path in folder.glob("wheels/*")}
    differing += [f"{name}: not in SHA256SUMS" for name in sorted(wheels - listed_names)]
    if differing:
        raise InstallError(
            "files-differ",
            f"{len(differing)} of the wheelhouse's files are not those it was made of",
            found=listed(differing),
            hint="copy the wheelhouse again",
        )


def _sha256(path: Path) -> str:
    # hashlib.file_digest would be shorter, and is missing in a Python that is still to be refused by name.
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_machine(manifest: dict[str, Any]) -> None:
    """Refuse a machine or a Python for which the wheels are not.

    Raises:
        InstallError: it is one.
    """
    running = f"{platform.machine()}-{platform.system().lower()}"
    if running != manifest["system"]:
        raise InstallError(
            "machine", "these wheels are for another machine", expected=manifest["system"], found=running
        )
    version = f"{manifest['python'][2]}.{manifest['python'][3:]}"
    if (found := _python_tag()) != manifest["python"]:
        hint = f"sh install.sh --python python{version} DIR"
        raise InstallError(
            "python", "these wheels are for another Python", expected=manifest["python"], found=found, hint=hint
        )
    try:
        import ensurepip  # noqa: F401 - Debian and Ubuntu split it off
    except ImportError as error:
        hint = f"sudo apt install python{version}-venv"
        raise InstallError("venv-missing", "this Python makes no virtual environments", hint=hint) from error
    # Triton compiles a part of itself when it is first used.
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if manifest["cuda"] and not header.is_file():
        hint = f"sudo apt install python{version}-dev"
        raise InstallError("python-headers", f"kernels are compiled at run time, and there is no {header}", hint=hint)


def _python_tag() -> str:
    kind = "cp" if sys.implementation.name == "cpython" else sys.implementation.name
    threads = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    return f"{kind}{sys.version_info.major}{sys.version_info.minor}{threads}"


def check_libraries(needs: dict[str, str]) -> None:
    """Refuse a system whose C or C++ library is older than the wheels were linked with.

    Raises:
        InstallError: it is.
    """
    providers = {"GLIBC": _glibc, "GLIBCXX": _libstdcxx}
    for name, wanted in needs.items():
        found = providers[name]()
        if _numbers(found) < _numbers(wanted):
            raise InstallError(
                "system-library",
                f"the wheels need a newer {'C' if name == 'GLIBC' else 'C++'} library than this system has",
                expected=f"{name} {wanted}",
                found=f"{name} {found}" if found else "none",
                hint="make the wheelhouse on a system as old as this one, or install on a newer one",
            )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split("."))) if version else ()


def _glibc() -> str:
    return (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc ")


def _libstdcxx() -> str:
    """Newest symbol version in the library that programs of this system get; empty without one."""
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return ""
    mapped = (line.split()[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    path = next(Path(name) for name in mapped if "/libstdc++.so.6" in name)
    versions = re.findall(rb"\bGLIBCXX_(\d+(?:\.\d+)+)\x00", path.read_bytes())
    return max((one.decode() for one in versions), key=_numbers, default="")


def check_target(target: Path, wheel_bytes: int) -> None:
    """Refuse a folder with something in it, or a disk that is too full.

    Raises:
        InstallError: it is one.
    """
    if os.pathsep in str(target):
        raise InstallError("target-name", f"no environment can lie in {target}: its name has a {os.pathsep}")
    existing = next(folder for folder in (target, *target.parents) if folder.exists())
    if not existing.is_dir():
        raise InstallError("target-in-use", f"{existing} is a file", hint="another folder")
    if existing == target and any(target.iterdir()) and not (target / UNFINISHED).exists():
        raise InstallError("target-in-use", f"{target} is not empty", hint=f"another folder, or: rm -r {target}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InstallError("target-not-writable", f"{existing} is not yours to write in", hint="another folder")
    free, wanted = shutil.disk_usage(existing).free, _DISK_FACTOR * wheel_bytes
    if free < wanted:
        raise InstallError(
            "disk-full",
            f"too little room for {target}",
            expected=f"{wanted / 2**30:.1f} GiB while it installs",
            found=f"{free / 2**30:.1f} GiB on {existing}",
            hint="another folder, or make room",
        )
