"""What is generated from the settings: goldens of commands and the tables of docs/serve.md.

`.venv/bin/python tests/support/serve_documents.py` writes them anew; tests compare.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from glm53_exl3.serve.argv import render_command
from glm53_exl3.serve.profiles import PROFILES
from glm53_exl3.serve.rules import RULES
from glm53_exl3.serve.runtime_flags import FORK_ONLY, PERHAPS_IN_FORK, UPSTREAM_ONLY
from glm53_exl3.serve.settings import SettingSpec, settings_schema
from support.serving import DRAFT, command_of, settings_of

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests" / "serve" / "goldens"
DOCUMENT = ROOT / "docs" / "serve.md"
REFRESH = f".venv/bin/python {Path(__file__).relative_to(ROOT)}"
#: Settings behind each golden.
GOLDEN_SETTINGS: dict[str, dict[str, Any]] = {name: {"profile": name} for name in PROFILES} | {
    "chat-dflash2": {"profile": "chat", "speculation": "dflash2", "draft": DRAFT, "draft_quantization": "fp8"},
    **{
        f"two-machines-{rank}": {
            "runtime": "upstream",
            "tensor_parallel": 2,
            "memory_plan": False,
            "nodes": 2,
            "node_rank": rank,
            "master_address": "169.254.10.1",
        }
        for rank in (0, 1)
    },
    "max-mtp-upstream": {"profile": "max", "speculation": "mtp", "runtime": "upstream"},
}


def golden(name: str) -> str:
    """The command of a golden, a variable or flag a line."""
    return render_command(command_of(settings_of(**GOLDEN_SETTINGS[name]))) + "\n"


def profiles_table() -> str:
    """One line a setting, one column a profile."""
    rows = [
        [f"`{s.key}`", *(shown(value) for value in s.by_profile.values())] for s in settings_schema() if s.by_profile
    ]
    return table(["setting", *(f"`{name}`" for name in PROFILES)], rows)


def settings_table() -> str:
    """One line a setting."""
    return table(
        ["key", "value", "default", "meaning"],
        [[f"`{s.key}`", values(s), default(s), s.help] for s in settings_schema()],
    )


def rules_table() -> str:
    """One line a rule."""
    return table(
        ["rule", "`force`", "reason"],
        [[f"`{rule.id}`", "lifts it" if rule.can_be_forced else "", rule.reason] for rule in RULES],
    )


def flags_table() -> str:
    """One line a list of flags."""
    lists = (
        ("0.28.0 and 0.29.0, not 0.32.0: the fork's only", FORK_ONLY),
        ("0.32.0, neither 0.28.0 nor 0.29.0: upstream's only", UPSTREAM_ONLY),
        ("0.29.0 and 0.32.0, not 0.28.0: perhaps in the fork", PERHAPS_IN_FORK),
    )
    return table(["in", "flags"], [[where, ", ".join(f"`{flag}`" for flag in flags)] for where, flags in lists])


TABLES: dict[str, Callable[[], str]] = {
    "profiles": profiles_table,
    "settings": settings_table,
    "rules": rules_table,
    "flags": flags_table,
}


def values(spec: SettingSpec) -> str:
    """What a setting may be."""
    if spec.choices:
        return ", ".join(f"`{choice}`" for choice in spec.choices)
    if spec.kind == "string":
        return "string"
    if spec.minimum is None:
        return {"boolean": "`true`, `false`", "strings": "list of strings"}.get(spec.kind, spec.kind)
    bounds = f"from {spec.minimum:,}" if spec.maximum is None else f"{spec.minimum:,} to {spec.maximum:,}"
    return f"{'list of ' if spec.kind == 'integers' else ''}{bounds}{' ' + spec.unit if spec.unit else ''}"


def default(spec: SettingSpec) -> str:
    """What holds when nothing is given."""
    if spec.by_profile and len(set(spec.by_profile.values())) > 1:
        return "by profile" + (f", else {spec.by_default}" if spec.by_default else "")
    return spec.by_default or shown(next(iter(spec.by_profile.values()), spec.default))


def shown(value: Any) -> str:
    """A value as TOML has it."""
    if value is None or value in ("", []):
        return "none"
    if type(value) in (int, float):
        return str(value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines) + "\n"


def with_tables(text: str) -> str:
    """A document with each table between its two comments made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert len(pattern.findall(text)) == 1, name
        text = pattern.sub(rf"\g<1>{make().replace(chr(92), chr(92) * 2)}\g<2>", text)
    return text


def main() -> None:
    """Write goldens and tables."""
    for stale in GOLDENS.glob("*.txt"):
        stale.unlink()
    for name in GOLDEN_SETTINGS:
        (GOLDENS / f"{name}.txt").write_text(golden(name), encoding="utf-8")
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
