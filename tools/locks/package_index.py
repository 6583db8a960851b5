"""What the package index has, asked through uv for a machine other than this one."""

from __future__ import annotations

import io
import os
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.utils import canonicalize_name
from wheel_files import Target, Wheel

#: A lock takes hundreds of requests; one that fails in passing is asked again.
ATTEMPTS = 4


@dataclass(frozen=True)
class Listed:
    """A wheel as the index lists it.

    Attributes:
        url: where it lies; used here, never written.
        size: bytes.
    """

    wheel: Wheel
    url: str
    size: int


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else "uv"


def _compile(lines: Iterable[str], target: Target, output: Path, *options: str) -> None:
    """Run `uv pip compile` for the target.

    Raises:
        SystemExit: uv's own words, where it finds no solution.
    """
    source = output.with_name("requirements.in")
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [_uv(), "pip", "compile", "-q", "--no-build", "--no-header", "--no-config"]
    command += ["--python-platform", target.uv_platform, "--python-version", "3.12"]
    command += [*options, str(source), "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{target.system}: uv finds no solution\n{result.stderr}")


def resolve(
    requirements: Iterable[str],
    target: Target,
    constraints: Iterable[str] = (),
    overrides: Iterable[str] = (),
    preferences: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Versions of the whole closure.

    Args:
        constraints: requirements that hold for what is in the closure anyway.
        overrides: requirements that replace every other one on the same distribution.
        preferences: versions by name to keep where nothing speaks against them.

    Returns:
        Version by normalised name.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "closure.txt"
        kept = [f"{name}=={version}\n" for name, version in (preferences or {}).items()]
        output.write_text("".join(kept), encoding="utf-8")
        options = ["--no-annotate", "--no-strip-extras"]
        for option, lines in (("--constraint", constraints), ("--override", overrides)):
            file = Path(folder) / f"{option.strip('-')}.txt"
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            options += [option, str(file)]
        _compile(requirements, target, output, *options)
        pairs = [line.split("==") for line in output.read_text(encoding="utf-8").splitlines()]
    return {canonicalize_name(name.partition("[")[0]): version for name, version in pairs}


def wheels_of(versions: Mapping[str, str], target: Target) -> dict[str, Listed]:
    """The wheel of each distribution that fits the target best.

    Args:
        versions: by normalised name; taken as they are, nothing is added.

    Raises:
        SystemExit: a distribution has no wheel for the target.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "pylock.toml"
        lines = [f"{name}=={version}" for name, version in versions.items()]
        _compile(lines, target, output, "--no-deps", "--format", "pylock.toml")
        packages = tomllib.loads(output.read_text(encoding="utf-8"))["packages"]
    found: dict[str, Listed] = {}
    for package in packages:
        fitting = []
        for file in package.get("wheels", ()):
            name = file.get("name") or file["url"].rpartition("/")[2]
            try:
                wheel = Wheel.from_filename(name, file["hashes"]["sha256"])
            except ValueError as fault:
                print(f"passed over: {fault}", file=sys.stderr)
                continue
            rank = wheel.rank(target)
            if rank is not None:
                fitting.append((rank, wheel.filename, Listed(wheel, file["url"], file["size"])))
        if fitting:
            found[canonicalize_name(package["name"])] = min(fitting)[2]
    missing = sorted(set(versions) - set(found))
    if missing:
        raise SystemExit(f"no wheel for {target.system}: {', '.join(missing)}")
    return found


class _RemoteFile(io.RawIOBase):
    """A file of the index that is read in pieces, so that METADATA does not cost 400 MB."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self._url, self._size, self._place = url, size, 0
        self._context = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        if self._place >= self._size or not len(buffer):
            return 0
        last = min(self._place + len(buffer), self._size) - 1
        content = self._part(f"bytes={self._place}-{last}")
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def _part(self, span: str) -> bytes:
        request = urllib.request.Request(self._url, headers={"Range": span})
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, context=self._context, timeout=120) as answer:
                    if answer.status != HTTPStatus.PARTIAL_CONTENT:
                        raise SystemExit(f"the index does not serve parts of files: {answer.status}")
                    return bytes(answer.read())
            except OSError as fault:
                if attempt == ATTEMPTS - 1:
                    raise SystemExit(f"the index stopped answering: {fault}") from fault
                time.sleep(5 * (attempt + 1))
        raise AssertionError("unreachable")


def metadata(listed: Listed) -> Metadata:
    """The METADATA of a wheel, read out of the file in the index."""
    remote = io.BufferedReader(_RemoteFile(listed.url, listed.size), 1 << 17)
    with zipfile.ZipFile(remote) as archive:
        return Metadata.from_email(metadata_text(archive), validate=False)


def metadata_text(archive: zipfile.ZipFile) -> bytes:
    """METADATA of an opened wheel."""
    folder = ".dist-info/METADATA"
    inside = next(n for n in archive.namelist() if n.endswith(folder) and n.count("/") == 1)
    return archive.read(inside)
