"""Files of a pack: `config.json`, the index and the shards."""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import PackError
from glm53_exl3.format.tensors import TRELLIS
from glm53_exl3.pack.damage import DamageError

CONFIG_FILE: Final = "config.json"
QUANTIZATION_FILE: Final = "quantization_config.json"
INDEX_FILE: Final = "model.safetensors.index.json"
SHARD_GLOB: Final = "*.safetensors"
_SHARD_SUFFIX: Final = ".safetensors"
#: Many times the index of a pack of 150,000 tensors, 15 MB; more is no JSON file of a pack.
_MAX_JSON_BYTES: Final = 1 << 28


@dataclass(frozen=True)
class PackIndex:
    """The index of a pack.

    Attributes:
        weight_map: shard file name by tensor name.
        total_size: bytes of all tensors as its metadata states them, None when they do not.
    """

    weight_map: dict[str, str]
    total_size: int | None


def open_file(path: Path) -> tuple[int, int]:
    """`(descriptor, size in bytes)` of a regular file, open for reading. The caller closes it.

    Never waits: a named pipe is refused, not read.

    Raises:
        PackError: `file-missing` or `file-unreadable`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        why = "is a link to a file that is not there" if path.is_symlink() else f"is missing in {path.parent}"
        raise DamageError(
            "file-missing",
            f"{path.name} {why}",
            hint="name the folder that holds config.json and the .safetensors shards",
            files=[path.name],
        ) from error
    # ValueError: a name with a NUL.
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise _unreadable(path, f"it is {kind}")
    return descriptor, status.st_size


def read_bytes(descriptor: int, num_bytes: int, path: Path) -> bytes:
    """Up to `num_bytes` from where a descriptor stands, fewer only at the end of the file.

    Raises:
        PackError: `file-unreadable`.
    """
    pieces: list[bytes] = []
    try:
        while num_bytes > 0 and (piece := os.read(descriptor, num_bytes)):
            pieces.append(piece)
            num_bytes -= len(piece)
    except OSError as error:
        raise _unreadable(path, error) from error
    return b"".join(pieces) if len(pieces) != 1 else pieces[0]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        PackError: `file-missing`, `file-unreadable` or `file-json`.
    """
    descriptor, num_bytes = open_file(path)
    try:
        if num_bytes > _MAX_JSON_BYTES:
            raise _bad_json(path, f"has {num_bytes} bytes, more than any JSON file of a pack")
        raw = read_bytes(descriptor, num_bytes, path)
    finally:
        os.close(descriptor)
    try:
        value = json.loads(raw.decode("utf-8"))
    # Both decode errors are ValueErrors, as is a number of too many digits.
    except (ValueError, RecursionError) as error:
        raise _bad_json(path, f"cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise _bad_json(path, "is not a JSON object")
    return value


def read_pack_index(directory: Path) -> PackIndex | None:
    """The index, or None when the pack has none.

    Raises:
        PackError: `file-json` when the index has no `weight_map` of names, `file-unreadable`.
    """
    path = directory / INDEX_FILE
    if not os.path.lexists(path):
        return None
    raw = read_json(path)
    weight_map = raw.get("weight_map")
    if not isinstance(weight_map, dict):
        raise _bad_json(path, "has no weight_map")
    if not set(map(type, weight_map.values())) <= {str}:
        raise _bad_json(path, "has a weight_map with values that are no file names")
    if not all(map(str.isprintable, weight_map)) or not all(map(str.isprintable, set(weight_map.values()))):
        raise _bad_json(path, "has names that cannot be printed")
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    # Some writers state a float.
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    return PackIndex(weight_map, total if type(total) is int else None)


def read_index(directory: Path) -> dict[str, str] | None:
    """Shard file name by tensor name from the index, or None when the pack has no index.

    Raises:
        PackError: `file-json` when the index has no `weight_map`, `file-unreadable`.
    """
    index = read_pack_index(directory)
    return None if index is None else index.weight_map


def shard_paths(directory: Path, index: dict[str, str] | None) -> tuple[list[Path], list[Path]]:
    """`(present, missing)` shards: those the index names, or all there are without an index.

    A name that is no plain file name is missing, wherever it leads: vLLM reads no shard outside the folder. What is
    present may still be unreadable.

    Raises:
        PackError: `pack-empty` when there is no shard at all.
    """
    named = set(directory.glob(SHARD_GLOB)) if index is None else {directory / shard for shard in set(index.values())}
    present = sorted(path for path in named if path.parent == directory and _exists(path))
    missing = sorted(named.difference(present))
    if not any(path.is_file() for path in present):
        raise PackError(
            "pack-empty",
            f"{directory} holds no .safetensors shard",
            hint="name the folder of a downloaded pack; its shards lie beside config.json",
        )
    return present, missing


def missing_shard(path: Path) -> DamageError:
    """The fault of a shard that the index names and that is not there."""
    return DamageError(
        "shard-missing",
        f"{path.name} is named in {INDEX_FILE} and is not there",
        hint="fetch this shard; the download did not finish",
        files=[path.name],
    )


def _exists(path: Path) -> bool:
    # False also for a name that no file system takes.
    return path.name.endswith(_SHARD_SUFFIX) and os.path.lexists(path)


def _unreadable(path: Path, reason: OSError | ValueError | str) -> DamageError:
    why = os.strerror(reason.errno) if isinstance(reason, OSError) and reason.errno else str(reason)
    denied = isinstance(reason, OSError) and reason.errno in (errno.EACCES, errno.EPERM)
    return DamageError(
        "file-unreadable",
        f"{path.name} cannot be read: {why}",
        expected="a file that this user may read",
        hint=f"chmod u+r {path}" if denied else f"remove {path} and fetch it again",
        files=[path.name],
    )


def _bad_json(path: Path, what: str) -> DamageError:
    return DamageError(
        "file-json", f"{path.name} {what}", hint=f"fetch {path.name} of the pack again", files=[path.name]
    )


def holds_trellis(directory: Path) -> bool:
    """Whether the folder looks like an EXL3 pack: some tensor of its index or shards is a trellis.

    Cheap and silent: used to recognise packs whose `quant_method` says something else. False when anything
    about the folder cannot be read.
    """
    from glm53_exl3.pack.safetensors_header import read_header

    suffix = f".{TRELLIS}"
    try:
        index = read_index(directory)
        if index is not None:
            return any(name.endswith(suffix) for name in index)
        shards = sorted(directory.glob(SHARD_GLOB))
        return any(tensor.name.endswith(suffix) for shard in shards for tensor in read_header(shard))
    except (OSError, PackError):
        return False
