"""Further arguments of `vllm serve`, read as vLLM's parser reads them, so that rules can see what they do. Pure.

That parser takes `_` for `-`, `--flag=value`, short names, any abbreviation that is unique, and `--flag.key value` for
a key of a flag that takes JSON (`FlexibleArgumentParser` in vllm/utils/argparse_utils.py of 0.32.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

_FLAG: Final = re.compile(r"--?[A-Za-z]")
_SHORT: Final = {
    "-ac": "--attention-config",
    "-cc": "--compilation-config",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}


@dataclass(frozen=True)
class ExtraFlag:
    """One flag and what follows it.

    Attributes:
        name: long, with dashes and without `no-`, perhaps abbreviated.
        key: what follows the dot, as `method` in `--speculative-config.method`; empty without one.
        values: arguments up to the next flag.
        written: the flag as it was written, without its value.
    """

    name: str
    key: str
    values: tuple[str, ...]
    written: str

    def means(self, flag: str) -> bool:
        """Whether vLLM may take this for `flag`. Where an abbreviation fits several flags, vLLM refuses it."""
        return flag.startswith(self.name)


def extra_flags(extra: Sequence[str]) -> list[ExtraFlag]:
    """The flags among further arguments, in their order."""
    flags: list[ExtraFlag] = []
    for argument in extra:
        if _FLAG.match(argument):
            written, equals, value = argument.partition("=")
            name, _, key = written.partition(".")
            key = key.rstrip("+").replace("-", "_")
            flags.append(ExtraFlag(_long(name), key, (value,) if equals else (), written))
        elif flags:
            last = flags[-1]
            flags[-1] = ExtraFlag(last.name, last.key, (*last.values, argument), last.written)
    return flags


def _long(name: str) -> str:
    if not name.startswith("--"):
        name = next((long for short, long in _SHORT.items() if short.startswith(name)), name)
    return re.sub(r"^--no-", "--", name.replace("_", "-"))


def value_of(flags: Iterable[ExtraFlag], flag: str, key: str) -> Any:
    """What the last of `--flag '{"key": value}'` and `--flag.key value` says; None without one."""
    found: Any = None
    for each in flags:
        if each.means(flag) and each.values:
            stated = _json(each.values[0])
            if each.key == key:
                found = each.values[0].split(",") if isinstance(stated, str) and "," in stated else stated
            elif not each.key and isinstance(stated, dict):
                found = stated.get(key, found)
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
