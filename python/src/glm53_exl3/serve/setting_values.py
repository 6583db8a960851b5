"""Values of settings: checked one by one, and merged from flags, file, profile and defaults. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.profiles import DEFAULT_PROFILE, DEFAULT_TOKENS, PROFILES
from glm53_exl3.serve.settings import KEYS, Kind, Settings, SettingSpec, profile_values, setting_spec

#: What a list of each kind holds.
_ITEM: Final[Mapping[Kind, Kind]] = {"strings": "string", "integers": "integer"}
_NAMES: Final[Mapping[Kind, str]] = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "path": "a path as a string",
    "strings": "a list of strings",
    "integers": "a list of whole numbers",
}
#: What a file says beside its `speculation`; means nothing once a flag asks for another.
_OF_SPECULATION: Final = ("speculative-tokens", "draft", "draft-quantization", "capture-sizes")


def merge_settings(flags: Mapping[str, Any], file: Mapping[str, Any]) -> Settings:
    """Settings from flags over file over profile over defaults.

    Where a flag asks for another `speculation` than file and profile, what the file says about speculation is left out.

    Args:
        flags: values by key; None means that a flag was not given.
        file: values by key, as `tomllib` reads them.

    Raises:
        SettingError: `setting-unknown`, `setting-type`, `setting-choice`, `setting-range` or `setting-missing`.
    """
    given = _checked({key: value for key, value in flags.items() if value is not None}, "--{}")
    stated = _checked(file, "{} of the settings file")
    profile = given.get("profile", stated.get("profile", DEFAULT_PROFILE))
    defaults = profile_values(PROFILES[profile])
    if given.get("speculation") not in (None, stated.get("speculation", defaults["speculation"])):
        stated = {name: value for name, value in stated.items() if name not in {KEYS[key] for key in _OF_SPECULATION}}
    values = {**defaults, **stated, **given}
    values.setdefault("speculative_tokens", DEFAULT_TOKENS[values["speculation"]])
    if "pack" not in values:
        raise SettingError(
            "setting-missing", "no pack is given", expected="the folder of a pack", hint="glm53-exl3 serve PACK"
        )
    return Settings(**values)


def nearest_key(key: str) -> str | None:
    """The key that is most like `key`, None when none is."""
    found = difflib.get_close_matches(key.replace("_", "-").lower(), list(KEYS), n=1)
    return found[0] if found else None


def _checked(values: Mapping[str, Any], shown_as: str) -> dict[str, Any]:
    """Values by field, each of its type and within its bounds."""
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in KEYS:
            raise _unknown(key, shown_as)
        checked[KEYS[key]] = _value(setting_spec(KEYS[key]), value, shown_as.format(key))
    return checked


def _unknown(key: str, shown_as: str) -> SettingError:
    nearest = nearest_key(key)
    return SettingError(
        "setting-unknown",
        f"there is no setting {key!r}",
        expected=shown_as.format(nearest) if nearest else "a setting of docs/serve.md",
        found=shown_as.format(key),
        hint=f"write {nearest}" if nearest else "glm53-exl3 serve --help lists all settings",
    )


def _value(spec: SettingSpec, value: Any, shown: str) -> Any:
    """`value` as the field holds it."""
    if spec.kind in _ITEM:
        if not isinstance(value, list | tuple):
            raise _wrong_type(spec, value, shown)
        return tuple(_scalar(spec, _ITEM[spec.kind], item, shown) for item in value)
    return _scalar(spec, spec.kind, value, shown)


def _scalar(spec: SettingSpec, kind: Kind, value: Any, shown: str) -> Any:
    if not _is(kind, value):
        raise _wrong_type(spec, value, shown)
    if spec.choices and value not in spec.choices:
        raise SettingError(
            "setting-choice",
            f"{shown} is {value!r}",
            expected=_listed(spec.choices),
            found=repr(value),
            hint=_instead(value, spec.choices),
        )
    measure = len(value) if isinstance(value, str) else value
    if not isinstance(value, Path) and not _within(spec, measure):
        raise SettingError(
            "setting-range",
            f"{shown} is {value!r}",
            expected=_bounds(spec),
            found=repr(value),
            hint=f"set {spec.key} to {_bounds(spec)}",
        )
    return {"path": Path, "number": float}.get(kind, lambda same: same)(value)


def _is(kind: Kind, value: Any) -> bool:
    if isinstance(value, bool) or kind == "boolean":
        # To Python a truth value is a number too.
        return kind == "boolean" and isinstance(value, bool)
    if kind in {"integer", "number"}:
        return isinstance(value, int) or (kind == "number" and isinstance(value, float) and math.isfinite(value))
    if kind == "path" and isinstance(value, Path):
        return True
    # No argument of a program can hold a NUL; an empty path would be the current folder.
    return isinstance(value, str) and "\0" not in value and (kind != "path" or bool(value))


def _wrong_type(spec: SettingSpec, value: Any, shown: str) -> SettingError:
    return SettingError(
        "setting-type",
        f"{shown} has the wrong type",
        expected=_NAMES[spec.kind],
        found=f"{value!r}, which is of type {type(value).__name__}",
        hint=f"see {spec.key} in docs/serve.md",
    )


def _within(spec: SettingSpec, value: Any) -> bool:
    return (spec.minimum is None or value >= spec.minimum) and (spec.maximum is None or value <= spec.maximum)


def _bounds(spec: SettingSpec) -> str:
    if spec.kind == "string":
        return "a string that is not empty"
    unit = f" {spec.unit}" if spec.unit else ""
    if spec.maximum is None:
        return f"at least {spec.minimum}{unit}"
    return f"{spec.minimum} to {spec.maximum}{unit}"


def _listed(choices: Iterable[str]) -> str:
    return ", ".join(choices)


def _instead(value: str, choices: tuple[str, ...]) -> str:
    found = difflib.get_close_matches(value, choices, n=1)
    return f"write {found[0]}" if found else f"write one of {_listed(choices)}"
