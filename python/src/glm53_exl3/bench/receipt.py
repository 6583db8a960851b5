"""A receipt: what was measured, and under which conditions. JSON, checked when it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol, get_args

from glm53_exl3.bench.answer import Outcome
from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.figures import level_figures
from glm53_exl3.bench.load import Level, Sample

KIND: Final = "glm53-exl3 bench serve"
#: Receipts of another command, which are written as these are and not compared.
KERNELS_KIND: Final = "glm53-exl3 bench kernels"
SCHEMA: Final = 1
SECTIONS: Final = ("server", "pack", "machine", "client")
_MOST_BYTES: Final = 1 << 28
_WHOLE: Final = frozenset({"run", "number", "prompt_tokens", "completion_tokens", "cached_tokens"})
_TEXT: Final = frozenset({"outcome", "detail", "output_sha256"})
#: What a request need not have.
_ABSENT: Final = frozenset(
    {
        "first_seconds",
        "last_seconds",
        "longest_gap_seconds",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "output_sha256",
    }
)


@dataclass(frozen=True)
class Receipt:
    """One measurement.

    Attributes:
        date: when it began, ISO 8601 in UTC.
        facts: what was so at the time; not compared.
        conditions: by the names of `SECTIONS`; None for what is not known.
        levels: in the order of measuring, one for each concurrency.
    """

    date: str
    facts: Mapping[str, Any]
    conditions: Mapping[str, Any]
    levels: tuple[Level, ...]

    def to_json(self) -> dict[str, Any]:
        """The receipt as the file has it; `figures` follow from `samples`."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "date": self.date,
            "facts": dict(self.facts),
            "conditions": dict(self.conditions),
            "levels": [_level_json(level) for level in self.levels],
        }


def _level_json(level: Level) -> dict[str, Any]:
    return {
        "concurrency": level.concurrency,
        "requests_per_run": level.requests_per_run,
        "figures": _figures_json(level),
        "samples": [asdict(sample) for sample in level.samples],
    }


def _figures_json(level: Level) -> dict[str, Any]:
    found = level_figures(level)
    spreads = {name: None if each is None else asdict(each) for name, each in found.spreads.items()}
    return {**spreads, "outcomes": dict(found.outcomes)}


def require_writable(path: Path) -> None:
    """Find out before the measurement that its receipt can be written.

    Raises:
        BenchError: `receipt-exists`, `receipt-write`.
    """
    if path.exists() or path.is_symlink():
        raise BenchError(
            "receipt-exists",
            f"{path} is there already and would be lost",
            hint=f"--out with another name, or: rm {path}",
        )
    if not os.access(path.parent, os.W_OK | os.X_OK) or not path.parent.is_dir():
        raise BenchError(
            "receipt-write",
            f"{path} cannot be written: {path.parent} is no folder that this user may write into",
            hint=f"mkdir -p {path.parent}",
        )


class Document(Protocol):
    """What can be written as a receipt."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of the file."""
        ...


def write_receipt(path: Path, receipt: Document) -> None:
    """Write a receipt; nobody sees half of it.

    Raises:
        BenchError: `receipt-write`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(receipt.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BenchError(
            "receipt-write", f"{path} cannot be written: {error.strerror}", hint=f"df -h {path.parent}"
        ) from error


def read_receipt(path: Path) -> Receipt:
    """A receipt from its file.

    Raises:
        BenchError: `receipt-invalid`: it cannot be read, is none, is of another schema, or its figures are not those
            of its requests.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES)
        return _parse(json.loads(raw))
    except OSError as error:
        found = error.strerror or str(error)
    except RecursionError:
        found = "brackets within brackets"
    except KeyError as error:
        found = f"no {error.args[0]!r}"
    except (TypeError, ValueError, OverflowError) as error:
        found = str(error)
    raise BenchError(
        "receipt-invalid",
        f"{path} is no receipt of bench serve",
        expected=f"JSON as glm53-exl3 bench serve --out writes it, schema {SCHEMA}",
        found=found[:200],
        hint="measure again: glm53-exl3 bench serve --url http://127.0.0.1:8000 --out NEW.json",
    )


def _parse(raw: Any) -> Receipt:
    if isinstance(raw, dict) and raw.get("kind") == KERNELS_KIND:
        raise ValueError("a receipt of bench kernels, whose tables are not compared")
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        raise ValueError("JSON of something else")
    if raw["schema"] != SCHEMA:
        raise ValueError(f"schema {raw['schema']!r}")
    conditions = _mapping(raw["conditions"], "conditions")
    for section in SECTIONS:
        _mapping(conditions[section], section)
    _count(conditions["client"]["warm_up_runs"], "warm_up_runs")
    levels = tuple(_parse_level(entry) for entry in _list(raw["levels"], "levels"))
    if len({level.concurrency for level in levels}) != len(levels):
        raise ValueError("a concurrency is there twice")
    return Receipt(_string(raw["date"], "date"), _mapping(raw["facts"], "facts"), conditions, levels)


def _parse_level(entry: Any) -> Level:
    level = Level(
        _count(_mapping(entry, "level")["concurrency"], "concurrency", least=1),
        _count(entry["requests_per_run"], "requests_per_run", least=1),
        tuple(_parse_sample(sample) for sample in _list(entry["samples"], "samples")),
    )
    if _figures_json(level) != entry["figures"]:
        raise ValueError(f"the figures of concurrency {level.concurrency} are not those of its requests")
    return level


def _parse_sample(entry: Any) -> Sample:
    values: dict[str, Any] = {}
    for name in (each.name for each in fields(Sample)):
        value = _mapping(entry, "sample")[name]
        if value is None and name in _ABSENT:
            values[name] = None
        elif name in _TEXT:
            values[name] = _string(value, name)
        else:
            values[name] = _count(value, name) if name in _WHOLE else _seconds(value, name)
    if values["outcome"] not in get_args(Outcome):
        raise ValueError(f"outcome {values['outcome']!r}")
    return Sample(**values)


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} is no object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} is no list")
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text: {value!r}")
    return value


def _count(value: Any, name: str, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is no number from {least}: {value!r}")
    return value


def _seconds(value: Any, name: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is no time: {value!r}")
    return float(value)
