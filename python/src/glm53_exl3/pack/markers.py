"""Values of the codebook markers: the only data of a pack that are read without hashing it.

The safetensors library writes the markers of a shard side by side, so a pack of 37,000 takes one read a shard. Where
each lies beside its trellis they are read one by one, by several threads: a drive that holds none of it in memory
answers a few at a time much faster than one after the other.
"""

from __future__ import annotations

import os
from collections import defaultdict
from operator import attrgetter
from pathlib import Path
from typing import Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.format.codebooks import MARKER_VALUES
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.files import open_file
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.safetensors_header import StoredTensor, start_of_data

#: Reading over a gap of this size costs less than another read.
_GAP_BYTES: Final = 4096
_MARKER_BYTES: Final = 4
_READERS: Final = 8


def marker_faults(inventory: Inventory) -> list[Glm53Error]:
    """Markers of sound modules that hold another number than the one of their codebook."""
    by_shard: dict[Path, list[StoredTensor]] = defaultdict(list)
    for name, module in inventory.modules.items():
        if module.codebook in MARKER_VALUES:
            marker = inventory.tensors[f"{name}.{module.codebook}"]
            by_shard[marker.shard].append(marker)
    runs = {shard: _runs(sorted(markers, key=attrgetter("start"))) for shard, markers in by_shard.items()}
    if all(len(of_shard) == 1 for of_shard in runs.values()):
        return [fault for shard, of_shard in runs.items() for fault in _faults_of(shard, of_shard)]
    # Importing it takes longer than reading markers that lie side by side.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(_faults_of, runs.keys(), runs.values())
        return [fault for faults in found for fault in faults]


def _runs(markers: list[StoredTensor]) -> list[list[StoredTensor]]:
    """Markers that one read gets, from markers in the order of their data."""
    runs: list[list[StoredTensor]] = []
    end = -_GAP_BYTES - 1
    for marker in markers:
        if marker.start - end > _GAP_BYTES:
            runs.append([])
        runs[-1].append(marker)
        end = marker.start
    return runs


def _faults_of(shard: Path, runs: list[list[StoredTensor]]) -> list[Glm53Error]:
    expected = {name: value.to_bytes(_MARKER_BYTES, "little", signed=True) for name, value in MARKER_VALUES.items()}
    faults: list[Glm53Error] = []
    descriptor = -1
    try:
        descriptor, _ = open_file(shard)
        # Else each read brings in what lies behind the marker too: 128 KiB for four bytes.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        data_start = start_of_data(descriptor)
        for run in runs:
            first = run[0].start
            data = os.pread(descriptor, run[-1].start + _MARKER_BYTES - first, data_start + first)
            # Nearly always all is as it should be, side by side.
            if data == b"".join([expected[marker.name.rpartition(".")[2]] for marker in run]):
                continue
            for marker in run:
                value = data[marker.start - first :][:_MARKER_BYTES]
                if value != expected[marker.name.rpartition(".")[2]]:
                    faults.append(_wrong(marker, value))
    except Glm53Error as fault:
        faults.append(fault)
    except OSError as error:
        faults.append(_drive_failed(shard, error))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return faults


def _drive_failed(shard: Path, error: OSError) -> DamageError:
    return DamageError(
        "file-unreadable",
        f"{shard.name} cannot be read: {os.strerror(error.errno or 0)}",
        hint="look for errors of the drive: sudo dmesg | grep -i error",
        files=[shard.name],
    )


def _wrong(marker: StoredTensor, value: bytes) -> DamageError:
    codebook = marker.name.rpartition(".")[2]
    return DamageError(
        "marker-value",
        f"{marker.name} is not the marker of {codebook}",
        expected=str(MARKER_VALUES[codebook]),
        found=str(int.from_bytes(value, "little", signed=True)) if len(value) == _MARKER_BYTES else "end of the file",
        hint="fetch the shard that holds it again; its bytes changed",
        tensors=[marker.name],
    )
