"""Checks of a pack on disk: files and settings here, its tensors in the inventory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import Glm53Error
from glm53_exl3.format.quantization_config import KEY, QUANT_METHOD
from glm53_exl3.pack.files import CONFIG_FILE, QUANTIZATION_FILE, SHARD_GLOB
from glm53_exl3.pack.manifest import MANIFEST_FILE
from glm53_exl3.pins import PackPin, load_pins
from glm53_exl3.probes.catalogue import CONFIG, INVENTORY, PRESENT, REVISION, SAMPLING, SIZE, STAMP, TEMPLATE, THINKING
from glm53_exl3.probes.result import CheckResult
from glm53_exl3.probes.units import gib

_SWITCH: Final = "enable_thinking"
#: Malformed tool calls in 4.2 % of replies were reported at this temperature (0xSero/GLM-5.3-Flash-DGX-Spark PR 3).
_HOT: Final = 1.0


@dataclass(frozen=True)
class PackFacts:
    """What stands in the folder of a pack, without its tensors.

    Attributes:
        folder: the folder.
        present: whether it is one.
        pin: the pack it is, when it is a known one.
        shard_bytes: size of each shard by name.
        json_files: JSON files by name; a text says why one that is there could not be read.
        template: the chat template, empty when there is none.
        trellis: whether a tensor is a trellis; None when that was not looked at.
        differing: files whose size is not that of the manifest, without a manifest none.
    """

    folder: Path
    present: bool
    pin: PackPin | None
    shard_bytes: Mapping[str, int] = field(default_factory=dict)
    json_files: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    template: str = ""
    trellis: bool | None = None
    differing: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Size of all shards that are there."""
        return sum(self.shard_bytes.values())

    @property
    def missing_bytes(self) -> int:
        """What is still to be downloaded, as far as the pack is known."""
        wanted = self.pin.weight_bytes if self.pin is not None else 0
        return max(0, wanted - self.total_bytes)

    @property
    def weight_bytes(self) -> int:
        """Size of all shards of the complete pack."""
        return max(self.total_bytes, self.pin.weight_bytes if self.pin is not None else 0)

    @property
    def name(self) -> str:
        """What the pack is called."""
        return self.pin.name if self.pin is not None else self.folder.name

    def json(self, name: str) -> Mapping[str, Any]:
        """A JSON file, empty when it is not there or cannot be read."""
        value = self.json_files.get(name)
        return value if isinstance(value, Mapping) else {}


def read_sizes(folder: Path) -> PackFacts:
    """Which pack a folder is and how much of it is there."""
    manifest = _read_json(folder / MANIFEST_FILE)
    repository = manifest.get("repository", "") if isinstance(manifest, Mapping) else ""
    return PackFacts(
        folder,
        folder.is_dir(),
        _pin(folder, str(repository)),
        {path.name: path.stat().st_size for path in sorted(folder.glob(SHARD_GLOB)) if path.is_file()},
        {MANIFEST_FILE: manifest} if manifest is not None else {},
    )


def read_pack(folder: Path, *, tensors: bool) -> PackFacts:
    """Everything but the headers; `tensors` also looks whether any tensor is a trellis."""
    sizes = read_sizes(folder)
    names = (CONFIG_FILE, QUANTIZATION_FILE, "tokenizer_config.json", "generation_config.json")
    read = {name: value for name in names if (value := _read_json(folder / name)) is not None}
    trellis = None
    if tensors and sizes.present:
        from glm53_exl3.pack.files import holds_trellis

        trellis = holds_trellis(folder)
    return PackFacts(
        folder,
        sizes.present,
        sizes.pin,
        sizes.shard_bytes,
        {**sizes.json_files, **read},
        _template(folder, read.get("tokenizer_config.json")),
        trellis,
        _differing(folder, sizes.json(MANIFEST_FILE)),
    )


def _pin(folder: Path, repository: str) -> PackPin | None:
    """By the manifest, else by the name of the folder: the repository's, or the name to ask for it."""
    folder_name = folder.resolve().name.lower()
    for pin in load_pins().packs.values():
        names = {pin.name.lower(), pin.repository.rpartition("/")[2].lower()}
        if pin.repository == repository or (not repository and folder_name in names):
            return pin
    return None


def _read_json(path: Path) -> Mapping[str, Any] | str | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return value if isinstance(value, dict) else "not a JSON object"


def _template(folder: Path, tokenizer: Mapping[str, Any] | str | None) -> str:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    stated = tokenizer.get("chat_template", "") if isinstance(tokenizer, Mapping) else ""
    if isinstance(stated, list):
        by_name = {str(entry.get("name")): entry for entry in stated if isinstance(entry, Mapping)}
        stated = by_name.get("default", {}).get("template", "")
    return stated if isinstance(stated, str) else ""


def _differing(folder: Path, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    entries = manifest.get("files", [])
    differing: list[str] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("path"), str):
            continue
        try:
            num_bytes = (folder / entry["path"]).stat().st_size
        except OSError:
            num_bytes = -1
        if num_bytes != entry.get("num_bytes"):
            differing.append(entry["path"])
    return tuple(differing)


def _fetch(facts: PackFacts, *options: str) -> str:
    """The command that fetches this pack into this very folder."""
    manifest = facts.json_files.get(MANIFEST_FILE)
    stated = manifest.get("repository") if isinstance(manifest, Mapping) else None
    name = stated if isinstance(stated, str) else facts.pin.name if facts.pin else "OWNER/REPO"
    return " ".join(("glm53-exl3 fetch", name, "--dir", shlex.quote(str(facts.folder)), *options))


def check_present(facts: PackFacts) -> CheckResult:
    """A folder with shards."""
    if not facts.present:
        return PRESENT.fail(f"{facts.folder} is not a folder", _fetch(facts))
    if not facts.shard_bytes:
        return PRESENT.fail(f"{facts.folder} holds no .safetensors shard", _fetch(facts))
    return PRESENT.ok(f"{facts.folder} ({facts.name if facts.pin else 'not one of the pinned packs'})")


def check_config(facts: PackFacts) -> CheckResult:
    """The file that vLLM starts from."""
    found = facts.json_files.get(CONFIG_FILE)
    if found is None:
        return CONFIG.fail(f"{CONFIG_FILE} is missing", _fetch(facts, "--repair"))
    if isinstance(found, str):
        return CONFIG.fail(f"{CONFIG_FILE} cannot be read: {found}", _fetch(facts, "--repair"))
    architectures = found.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else "no architecture"
    return CONFIG.ok(str(named))


def check_stamp(facts: PackFacts) -> CheckResult:
    """By this word alone vLLM picks the quantization method, whatever the tensors are."""
    config = facts.json(CONFIG_FILE)
    text = config.get("text_config")
    holders = (config, text if isinstance(text, Mapping) else {})
    stated = next((found for holder in holders if isinstance(found := holder.get(KEY), Mapping)), None)
    if stated is None:
        stated = facts.json(QUANTIZATION_FILE) or None
    method = stated.get("quant_method") if stated is not None else None
    if method == QUANT_METHOD and facts.trellis is not False:
        return STAMP.ok("exl3")
    fix = f'write "quant_method": "exl3" into {KEY} of {facts.folder / CONFIG_FILE}'
    if method == QUANT_METHOD:
        return STAMP.fail("exl3, but no tensor is a trellis", _fetch(facts, "--repair"))
    if facts.trellis:
        return STAMP.fail(f"quant_method is {method!r}, but the experts are EXL3", fix)
    if facts.trellis is None:
        return STAMP.fail(f"quant_method is {method!r}, not 'exl3'", f"if its experts are EXL3, {fix}")
    return STAMP.fail(f"quant_method is {method!r} and no tensor is a trellis: not an EXL3 pack", _fetch(facts))


def check_size(facts: PackFacts) -> CheckResult:
    """Number and bytes of the shards, against the manifest or else the pin."""
    measured = f"{len(facts.shard_bytes)} shards, {facts.total_bytes} bytes ({gib(facts.total_bytes)})"
    if facts.differing:
        count = len(facts.differing)
        listed = facts.differing[0] + (f" and {count - 1} more" if count > 1 else "")
        return SIZE.fail(f"{measured}; not as in the manifest: {listed}", _fetch(facts, "--repair"))
    if facts.pin is None:
        return SIZE.ok(f"{measured}, no pin to compare with")
    if len(facts.shard_bytes) == facts.pin.shards and facts.total_bytes == facts.pin.weight_bytes:
        return SIZE.ok(measured)
    wanted = f"{facts.pin.name} has {facts.pin.shards} shards, {facts.pin.weight_bytes} bytes"
    return SIZE.fail(f"{measured}; {wanted}", _fetch(facts, "--repair"))


def check_revision(facts: PackFacts) -> CheckResult:
    """Files of two commits do not fit each other."""
    found = facts.json_files.get(MANIFEST_FILE)
    if found is None:
        return REVISION.skip("no manifest: not fetched by glm53-exl3")
    if isinstance(found, str):
        return REVISION.fail(f"{MANIFEST_FILE} cannot be read: {found}", _fetch(facts, "--repair"))
    commit = str(found.get("commit", ""))
    measured = f"{found.get('repository')} at {commit[:12]}"
    if not found.get("complete"):
        return REVISION.fail(f"{measured}, download not finished", _fetch(facts, "--repair"))
    if facts.pin is not None and facts.pin.commit is not None and facts.pin.commit != commit:
        return REVISION.warn(f"{measured}, this release was made for {facts.pin.commit[:12]}", _fetch(facts))
    return REVISION.ok(measured)


def check_template(facts: PackFacts) -> CheckResult:
    """Without a template every chat request is refused."""
    if facts.template:
        return TEMPLATE.ok(f"{len(facts.template)} characters")
    judge = TEMPLATE.fail if facts.pin is not None else TEMPLATE.warn
    return judge("none: chat requests will be refused", _fetch(facts, "--repair"))


def check_thinking(facts: PackFacts) -> CheckResult:
    """A template that always opens a thought ignores requests that switch thinking off."""
    if not facts.template:
        return THINKING.skip("no chat template")
    if _SWITCH in facts.template:
        return THINKING.ok(f"the template reads {_SWITCH}")
    if "<think>" not in facts.template:
        return THINKING.ok("the template opens no thought")
    return THINKING.warn(
        f"the template does not read {_SWITCH}: thinking cannot be switched off",
        "serve with a template that does: --chat-template FILE",
    )


def check_sampling(facts: PackFacts) -> CheckResult:
    """The temperature of requests that name none."""
    stated = facts.json("generation_config.json").get("temperature")
    temperature = stated if isinstance(stated, int | float) else _HOT
    measured = f"temperature {temperature:g}{'' if stated is not None else ' (vLLM, as the pack states none)'}"
    if temperature < _HOT:
        return SAMPLING.ok(measured)
    return SAMPLING.warn(
        f"{measured}: tool calls come out malformed more often",
        "let clients that use tools send a lower one, or serve with -- --override-generation-config "
        "'{\"temperature\": 0.6}'",
    )


def check_inventory(faults: tuple[Glm53Error, ...]) -> CheckResult:
    """Every tensor of every layer, by the headers of all shards."""
    if not faults:
        return INVENTORY.ok("every expert tensor is there, with right dtype and shape")
    first = faults[0]
    more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    return INVENTORY.fail(f"{first.id}: {first.what}{more}", first.hint or "glm53-exl3 verify PACK lists all")


def read_faults(folder: Path) -> tuple[Glm53Error, ...]:
    """Faults of the inventory; what keeps it from being read is one."""
    from glm53_exl3.pack.inventory import read_inventory

    try:
        return read_inventory(folder).faults
    except Glm53Error as error:
        return (error,)


PACK_CHECKS: Final[tuple[Callable[[PackFacts], CheckResult], ...]] = (
    check_present,
    check_config,
    check_stamp,
    check_size,
    check_revision,
    check_template,
    check_thinking,
    check_sampling,
)
