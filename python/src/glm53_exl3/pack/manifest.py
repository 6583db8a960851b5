"""The manifest of a fetched pack: which repository and commit it is, and size and hash of every file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import PackError
from glm53_exl3.pack.files import read_json

MANIFEST_FILE: Final = "glm53-exl3-manifest.json"
_SCHEMA: Final = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ManifestFile:
    """One file of a pack.

    Attributes:
        path: relative to the folder of the pack, with forward slashes.
        num_bytes: its size.
        sha256: of its bytes, 64 hexadecimal digits; None while only the Hub's git hash is known.
        verified_mtime_ns: time of last modification, in nanoseconds since the epoch, that the file had when its
            contents were last found right; None when they were not looked at. A file that still has this time and its
            size need not be read again.
    """

    path: str
    num_bytes: int
    sha256: str | None
    verified_mtime_ns: int | None = None


@dataclass(frozen=True)
class Manifest:
    """What was fetched.

    Attributes:
        repository: Hugging Face repository as owner/name.
        revision: what was asked for: a branch, a tag or a commit.
        commit: what that was then, 40 hexadecimal digits.
        licence: licence id of the repository in lower case, empty when it states none.
        complete: whether every file had arrived and matched when this was written.
        files: in the order of their paths.
    """

    repository: str
    revision: str
    commit: str
    licence: str
    complete: bool
    files: tuple[ManifestFile, ...]

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.num_bytes for file in self.files)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a folder, None when it was not fetched by this project.

    Raises:
        PackError: `manifest-invalid`.
    """
    path = directory / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        raw = read_json(path)
        if raw["schema"] != _SCHEMA:
            raise ValueError(f"schema {raw['schema']!r}")
        files = tuple(_file(entry) for entry in raw["files"])
        manifest = Manifest(
            _text(raw["repository"]),
            _text(raw["revision"]),
            _text(raw["commit"]),
            _text(raw["licence"]),
            _flag(raw["complete"]),
            files,
        )
        if len({file.path for file in files}) != len(files):
            raise ValueError("a file is listed twice")
        if not _COMMIT.fullmatch(manifest.commit):
            raise ValueError(f"commit {manifest.commit!r}")
    except (KeyError, TypeError, ValueError, PackError) as error:
        raise PackError(
            "manifest-invalid",
            f"{MANIFEST_FILE} in {directory} cannot be read",
            found=error.what if isinstance(error, PackError) else f"{type(error).__name__}: {error}",
            hint=f"remove {MANIFEST_FILE} and run glm53-exl3 fetch again; files that are there are kept",
        ) from error
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a folder; a reader sees the old one or the new one, never half of it."""
    path = directory / MANIFEST_FILE
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump({"schema": _SCHEMA, **asdict(manifest)}, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _file(entry: Any) -> ManifestFile:
    path, num_bytes, sha256 = _text(entry["path"]), entry["num_bytes"], entry["sha256"]
    parts = path.split("/")
    if path.startswith("/") or not all(part not in ("", ".", "..") for part in parts):
        raise ValueError(f"path {path!r}")
    if type(num_bytes) is not int or num_bytes < 0:
        raise ValueError(f"{path}: size {num_bytes!r}")
    if sha256 is not None and not _SHA256.fullmatch(_text(sha256)):
        raise ValueError(f"{path}: sha256 {sha256!r}")
    verified = entry.get("verified_mtime_ns")
    if verified is not None and type(verified) is not int:
        raise ValueError(f"{path}: time {verified!r}")
    return ManifestFile(path, num_bytes, sha256, verified)
