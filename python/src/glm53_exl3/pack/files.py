"""Files of a pack: `config.json`, the index and the shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import PackError
from glm53_exl3.format.tensors import TRELLIS

CONFIG_FILE: Final = "config.json"
QUANTIZATION_FILE: Final = "quantization_config.json"
INDEX_FILE: Final = "model.safetensors.index.json"
SHARD_GLOB: Final = "*.safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        PackError: `file-missing` or `file-json`.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PackError(
            "file-missing",
            f"{path.name} is missing in {path.parent}",
            hint="name the folder that holds config.json and the .safetensors shards",
        ) from error
    # Both decode errors are ValueErrors, as is a number of too many digits.
    except (OSError, ValueError, RecursionError) as error:
        raise PackError(
            "file-json", f"{path.name} cannot be read as JSON: {error}", hint=f"fetch {path.name} of the pack again"
        ) from error
    if not isinstance(value, dict):
        raise PackError("file-json", f"{path.name} is not a JSON object", hint=f"fetch {path.name} of the pack again")
    return value


def read_index(directory: Path) -> dict[str, str] | None:
    """Shard file name by tensor name from the index, or None when the pack has no index.

    Raises:
        PackError: `file-json` when the index has no `weight_map`.
    """
    path = directory / INDEX_FILE
    if not path.exists():
        return None
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise PackError("file-json", f"{INDEX_FILE} has no weight_map", hint=f"fetch {INDEX_FILE} of the pack again")
    return {str(name): str(shard) for name, shard in weight_map.items()}


def shard_paths(directory: Path, index: dict[str, str] | None) -> tuple[list[Path], list[Path]]:
    """`(present, missing)` shards: those the index names, or all there are without an index.

    Raises:
        PackError: `pack-empty` when there is no shard at all.
    """
    named = set(directory.glob(SHARD_GLOB)) if index is None else {directory / shard for shard in index.values()}
    present = sorted(path for path in named if _is_file(path))
    missing = sorted(named.difference(present))
    if not present:
        raise PackError(
            "pack-empty",
            f"{directory} holds no .safetensors shard",
            hint="name the folder of a downloaded pack; its shards lie beside config.json",
        )
    return present, missing


def missing_shard(path: Path) -> PackError:
    """The fault of a shard that the index names and that is not there."""
    return PackError(
        "shard-missing",
        f"{path.name} is named in {INDEX_FILE} and is not there",
        hint="fetch this shard; the download did not finish",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A name that no file system takes.
        return False


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
