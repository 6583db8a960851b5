"""Everything that can be said about a pack without loading it: all faults, worst first, and what would mend them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from glm53_exl3.errors import Glm53Error, PackError
from glm53_exl3.pack import companions, files
from glm53_exl3.pack.completeness import model_faults
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.findings import DAMAGED, Finding, Level, to_findings
from glm53_exl3.pack.inventory import Inventory, read_inventory, without_collection
from glm53_exl3.pack.manifest import Manifest, read_manifest
from glm53_exl3.pack.markers import marker_faults
from glm53_exl3.pack.safetensors_header import read_header
from glm53_exl3.pins import PackPin


@dataclass(frozen=True)
class RepairFile:
    """A file that `fetch --repair` would look at for the faults that were found.

    Attributes:
        path: within the folder of the pack.
        num_bytes: its right size, None when there is no manifest to say it.
        damaged: it is certainly to be downloaded again; else it is only suspect.
    """

    path: str
    num_bytes: int | None
    damaged: bool


@dataclass(frozen=True)
class VerifyReport:
    """What :func:`verify_pack` found.

    Attributes:
        directory: folder of the pack.
        faults: worst first; empty for a sound pack.
        warnings: what does not keep the pack from being served.
        checked: what was compared with what, in words.
        unchecked: what was not, and why.
        repair: files to blame for the faults, damaged ones first.
        repair_command: the command that mends them.
        num_shards, num_tensors, num_layers, num_bytes: shards read, tensors in them, sound layers of EXL3 experts,
            bytes of all tensors.
        hashed_bytes: bytes that were hashed.
        seconds: how long it took.
    """

    directory: Path
    faults: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    repair: tuple[RepairFile, ...]
    repair_command: str
    num_shards: int
    num_tensors: int
    num_layers: int
    num_bytes: int
    hashed_bytes: int
    seconds: float

    @property
    def num_faults(self) -> int:
        """Single faults, warnings left out."""
        return sum(len(finding.faults) for finding in self.faults)


@dataclass
class _Work:
    directory: Path
    manifest: Manifest | None = None
    pin: PackPin | None = None
    inventory: Inventory | None = None
    faults: list[Glm53Error] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    hashed_bytes: int = 0

    @property
    def fetch(self) -> str:
        """The command that mends the pack."""
        name = "OWNER/REPO"
        if self.manifest is not None:
            name = f"{self.manifest.repository}@{self.manifest.commit}"
        elif self.pin is not None:
            name = self.pin.name
        return shlex.join(["glm53-exl3", "fetch", name, "--dir", str(self.directory), "--repair"])


def verify_pack(
    directory: Path, hashes: bool = False, progress: Callable[[int, int], object] | None = None
) -> VerifyReport:
    """Check a pack. Reads the headers of the shards and the codebook markers, and with `hashes` every byte.

    Args:
        directory: folder of the pack.
        hashes: compare the SHA-256 of the files with the manifest.
        progress: called from several threads with the bytes of a piece that was hashed and those of all files.

    Raises:
        PackError: `pack-missing`, there is no such folder. Everything else is a fault of the report.
    """
    started = time.perf_counter()
    if not directory.is_dir():
        raise PackError("pack-missing", f"{directory} is not a folder", hint="glm53-exl3 fetch K2")
    work = _Work(directory)
    with without_collection():
        _read_manifest(work)
        _check_tensors(work)
        _check_companions(work)
    _check_hashes(work, hashes, progress)
    inventory = work.inventory
    tensors = inventory.tensors if inventory else {}
    findings = to_findings(_without_echoes(work.faults), tensors)
    faults = tuple(finding for finding in findings if finding.level is not Level.WARNING)
    return VerifyReport(
        directory=directory,
        faults=faults,
        warnings=tuple(finding for finding in findings if finding.level is Level.WARNING),
        checked=tuple(work.checked),
        unchecked=tuple(work.unchecked),
        repair=_repair(faults, work.manifest),
        repair_command=work.fetch,
        num_shards=len(inventory.shards) if inventory else 0,
        num_tensors=len(tensors),
        num_layers=len(inventory.layers) if inventory else 0,
        num_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
        hashed_bytes=work.hashed_bytes,
        seconds=time.perf_counter() - started,
    )


def _read_manifest(work: _Work) -> None:
    try:
        work.manifest = read_manifest(work.directory)
    except Glm53Error as fault:
        work.faults.append(fault)
    work.pin = companions.pin_of(work.directory, work.manifest)
    manifest = work.manifest
    if manifest is None:
        work.unchecked.append("whether the files are those of the repository: there is no manifest")
        return
    work.checked.append(
        f"{len(manifest.files)} files against the manifest of {manifest.repository} at {manifest.commit[:12]}: sizes"
    )
    if not manifest.complete:
        work.faults.append(
            DamageError("fetch-incomplete", "the last glm53-exl3 fetch of this folder did not finish", hint=work.fetch)
        )


def _check_tensors(work: _Work) -> None:
    try:
        inventory = work.inventory = read_inventory(work.directory)
    except Glm53Error as fault:
        draft = work.pin is not None and work.pin.kind == "draft" and fault.id == "not-exl3"
        if draft:
            work.unchecked.append("tensors by name: a draft model is not EXL3")
        else:
            work.faults.append(fault)
            work.unchecked.append(f"tensors by name: {fault.id} keeps the pack from being read as one")
        _check_headers_alone(work)
        return
    work.faults += inventory.faults
    work.checked.append(f"{len(inventory.shards)} shards: header against size of the file, {_index(inventory)}")
    work.checked.append(
        f"{len(inventory.layers)} layers of routed experts: every tensor once, dtype, shape, bits, codebook"
    )
    wrong_markers = marker_faults(inventory)
    work.faults += wrong_markers
    work.checked.append(f"codebook markers of {len(inventory.modules)} EXL3 linears, and their values")
    model = model_faults(inventory)
    if model is None:
        work.unchecked.append("tensors outside the routed experts: the pack has none in its layers")
    else:
        work.faults += model
        work.checked.append("tensors outside the routed experts, layer by layer with their siblings")
    work.faults += _index_and_surplus(inventory)


def _check_headers_alone(work: _Work) -> None:
    shards = sorted(work.directory.glob(files.SHARD_GLOB))
    for path in shards:
        try:
            read_header(path)
        except Glm53Error as fault:
            work.faults.append(fault)
    work.checked.append(f"{len(shards)} shards: header against size of the file")


def _index(inventory: Inventory) -> str:
    return f"the index against both, {len(inventory.index.weight_map)} names" if inventory.index else "no index"


def _index_and_surplus(inventory: Inventory) -> Iterable[Glm53Error]:
    index = inventory.index
    if index is None:
        return
    for name in inventory.unlisted:
        yield DamageError(
            "index-incomplete",
            f"{name} is in {inventory.tensors[name].shard.name} and not in {files.INDEX_FILE}",
            hint=f"fetch {files.INDEX_FILE} and the shards of one commit",
            files=[files.INDEX_FILE],
        )
    stored = sum(tensor.num_bytes for tensor in inventory.tensors.values())
    if index.total_size not in (None, stored) and not inventory.faults:
        yield DamageError(
            "index-total",
            f"{files.INDEX_FILE} states another size than the tensors have",
            expected=f"{stored} bytes, the sum of all tensors",
            found=f"{index.total_size} bytes",
            hint="nothing: no loader reads it. A pack that was put together by hand may say so",
            files=[files.INDEX_FILE],
        )
    listed = set(index.weight_map.values())
    for path in sorted(inventory.directory.glob(files.SHARD_GLOB)):
        if path.name not in listed:
            yield DamageError(
                "shard-surplus",
                f"{path.name} is not named in {files.INDEX_FILE}, so nothing loads it",
                hint=shlex.join(["rm", str(path)]),
                files=[path.name],
            )


def _check_companions(work: _Work) -> None:
    if work.manifest is not None:
        work.faults += companions.size_faults(work.directory, work.manifest, work.fetch)
    if work.inventory is not None:
        work.faults += companions.absent_files(work.inventory, work.fetch)
    if work.pin is not None:
        shards = [path for path in work.directory.glob(files.SHARD_GLOB) if path.is_file()]
        work.faults += companions.pin_faults(work.pin, shards, work.manifest, work.fetch)
        work.checked.append(f"number and size of the shards against the pinned {work.pin.name}")


def _check_hashes(work: _Work, hashes: bool, progress: Callable[[int, int], object] | None) -> None:
    manifest = work.manifest
    if not hashes:
        work.unchecked.append("the bytes of the weights: --hash compares their sha256 with the manifest")
        return
    if manifest is None:
        work.faults.append(
            PackError(
                "manifest-missing",
                f"{work.directory} has no manifest, so there are no hashes to compare with",
                hint=f"{work.fetch} gets them from the Hub, compares, and writes a manifest",
            )
        )
        return
    num_files, work.hashed_bytes = companions.num_hashable(work.directory, manifest)
    work.faults += companions.hash_faults(work.directory, manifest, work.fetch, progress)
    work.checked.append(f"sha256 of {num_files} files, {work.hashed_bytes} bytes")
    without = sum(file.sha256 is None for file in manifest.files)
    if without:
        work.unchecked.append(f"the bytes of {without} files of which the manifest has no sha256")


def _without_echoes(faults: list[Glm53Error]) -> Iterable[Glm53Error]:
    """Faults of a file that is missing or of the wrong length once, and twice the same never."""
    blamed: set[str] = set()
    seen: set[str] = set()
    for fault in faults:
        blames = fault.files if isinstance(fault, DamageError) else ()
        if fault.id in ("file-missing", "file-size") and blamed.intersection(blames):
            continue
        if fault.id.startswith(("file-", "shard-")):
            blamed.update(blames)
        text = f"{fault.id} {fault.what}"
        if text not in seen:
            seen.add(text)
            yield fault


def _repair(faults: tuple[Finding, ...], manifest: Manifest | None) -> tuple[RepairFile, ...]:
    sizes = {file.path: file.num_bytes for file in manifest.files} if manifest else {}
    damaged = {path for finding in faults if finding.level in DAMAGED for path in finding.files}
    suspect = {path for finding in faults for path in finding.files} - damaged
    return tuple(
        RepairFile(path, sizes.get(path), certain)
        for paths, certain in ((damaged, True), (suspect, False))
        for path in sorted(paths)
    )
