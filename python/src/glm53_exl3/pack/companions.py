"""What lies beside the tensors: the files of the manifest, and files without which a server answers worse or not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.pack import files
from glm53_exl3.pack.damage import DamageError
from glm53_exl3.pack.inventory import Inventory
from glm53_exl3.pack.manifest import Manifest, ManifestFile
from glm53_exl3.pins import PackPin, load_pins

#: Files one of which should be there, and what happens otherwise.
_WANTED: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"), "vLLM cannot make tokens of a prompt"),
    (("tokenizer_config.json",), "vLLM may take the wrong tokenizer class"),
    (("generation_config.json",), "answers may not end where they should: the end tokens are listed in it"),
)
_TEMPLATES: Final = ("chat_template.jinja", "chat_template.json")
_PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"


def size_faults(directory: Path, manifest: Manifest, fetch: str) -> list[Glm53Error]:
    """Files that are not there or have another size than the manifest says."""
    faults: list[Glm53Error] = []
    for file in manifest.files:
        try:
            num_bytes = (directory / file.path).stat().st_size
        except OSError as error:
            faults.append(
                DamageError(
                    "file-missing",
                    f"{file.path} is in the manifest and is not there: {os.strerror(error.errno or 0)}",
                    hint=fetch,
                    files=[file.path],
                )
            )
            continue
        if num_bytes != file.num_bytes:
            faults.append(_differs(file, f"{file.num_bytes} bytes", f"{num_bytes} bytes", fetch))
    return faults


def hash_faults(
    directory: Path, manifest: Manifest, fetch: str, progress: Callable[[int, int], object] | None
) -> list[Glm53Error]:
    """Files of the right size whose SHA-256 is not that of the manifest.

    Args:
        directory: folder of the pack.
        manifest: what the files should be.
        fetch: the command that mends them.
        progress: called from several threads with the bytes of a piece that was read and those of all files.
    """
    from glm53_exl3.pack.checksums import sha256_of_all

    wanted = {directory / file.path: file for file in _comparable(directory, manifest)}
    total = sum(file.num_bytes for file in wanted.values())
    try:
        found = sha256_of_all(wanted, (lambda read: progress(read, total)) if progress is not None else None)
    except OSError as error:
        return [
            DamageError(
                "file-unreadable",
                f"{Path(error.filename or directory).name} cannot be read: {os.strerror(error.errno or 0)}",
                hint="look for errors of the drive: sudo dmesg | grep -i error",
                files=[Path(error.filename).name] if error.filename else [],
            )
        ]
    return [
        _differs(file, f"sha256 {file.sha256}", f"sha256 {found[path]}", fetch)
        for path, file in wanted.items()
        if found[path] != file.sha256
    ]


def num_hashable(directory: Path, manifest: Manifest) -> tuple[int, int]:
    """`(files, bytes)` whose hash can be compared."""
    comparable = list(_comparable(directory, manifest))
    return len(comparable), sum(file.num_bytes for file in comparable)


def _comparable(directory: Path, manifest: Manifest) -> Iterator[ManifestFile]:
    for file in manifest.files:
        path = directory / file.path
        if file.sha256 is not None and path.is_file() and path.stat().st_size == file.num_bytes:
            yield file


def _differs(file: ManifestFile, expected: str, found: str, fetch: str) -> DamageError:
    """A shard that differs is damaged; a text may have been edited on purpose, as a chat template is."""
    if not file.path.endswith(".safetensors"):
        return DamageError(
            "file-changed",
            f"{file.path} is not the file that was fetched",
            expected=expected,
            found=found,
            hint=f"nothing if you edited it; else {fetch}",
            files=[file.path],
        )
    if expected.startswith("sha256"):
        return DamageError(
            "file-hash",
            f"{file.path} does not hold what the repository holds",
            expected=expected,
            found=found,
            hint=fetch,
            files=[file.path],
        )
    return DamageError(
        "file-size",
        f"{file.path} has another size than the manifest says",
        expected=expected,
        found=found,
        hint=fetch,
        files=[file.path],
    )


def absent_files(inventory: Inventory, fetch: str) -> list[Glm53Error]:
    """Warnings of files beside the shards that a server wants."""
    directory = inventory.directory
    wanted = [*_WANTED]
    if inventory.config.get("vision_config"):
        wanted.append((_PROCESSORS, "vLLM cannot take images or videos"))
    absent = [(names, why) for names, why in wanted if not any((directory / name).is_file() for name in names)]
    if not _has_template(directory):
        absent.append((_TEMPLATES, "every chat request will be refused"))
    return [
        DamageError("file-absent", f"{names[0]} is not there: {why}", hint=fetch, files=[names[0]])
        for names, why in absent
    ]


def _has_template(directory: Path) -> bool:
    if any((directory / name).is_file() for name in _TEMPLATES):
        return True
    try:
        return bool(files.read_json(directory / _TOKENIZER_CONFIG).get("chat_template"))
    except Glm53Error:
        return False


def pin_of(directory: Path, manifest: Manifest | None) -> PackPin | None:
    """The known pack that a folder is, by its manifest, else by the repository's name in the path."""
    for pin in load_pins().packs.values():
        if manifest is not None:
            if pin.repository.lower() == manifest.repository.lower():
                return pin
            continue
        # A folder of the Hub's cache is models--owner--name/snapshots/<commit>.
        cached = "models--" + pin.repository.replace("/", "--")
        resolved = directory.resolve()
        if resolved.name.lower() in (pin.name.lower(), pin.repository.rpartition("/")[2].lower()):
            return pin
        if cached.lower() in (part.lower() for part in resolved.parts):
            return pin
    return None


def pin_faults(pin: PackPin, shards: list[Path], manifest: Manifest | None, fetch: str) -> list[Glm53Error]:
    """Whether a known pack has its number of shards and bytes.

    A manifest tells more exactly what the files should be, and of another commit than the pinned one they may differ.
    """
    num_bytes = sum(path.stat().st_size for path in shards)
    if manifest is not None or (len(shards), num_bytes) == (pin.shards, pin.weight_bytes):
        return []
    return [
        DamageError(
            "pack-size",
            f"the shards are not those of {pin.name}",
            expected=f"{pin.shards} shards of {pin.weight_bytes} bytes in all",
            found=f"{len(shards)} shards of {num_bytes} bytes",
            hint=fetch,
        )
    ]
