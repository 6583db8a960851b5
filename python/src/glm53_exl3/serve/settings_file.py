"""The settings file of `serve`: TOML with the keys of the flags."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.settings import KEYS, setting_spec

_PLACE: Final = re.compile(
    r"^(?P<what>.*?) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$", re.DOTALL
)


def read_settings_file(path: Path) -> dict[str, Any]:
    """Values by key as the file states them; paths in it are relative to its folder, and `~` is the home.

    Keys and values are checked when they are merged.

    Raises:
        SettingError: `settings-file`, it cannot be read, or `settings-syntax`, it is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError("settings-file", f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    except UnicodeDecodeError as error:
        raise SettingError(
            "settings-file",
            f"{path} is not text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}",
            hint=f"file {path}",
        ) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax(path, text, str(error)) from error
    return {key: _beside(path, key, value) for key, value in values.items()}


def _beside(file: Path, key: str, value: Any) -> Any:
    if key not in KEYS or setting_spec(KEYS[key]).kind != "path" or not isinstance(value, str) or not value:
        return value
    try:
        return str(file.absolute().parent / Path(value).expanduser())
    except RuntimeError as error:
        raise SettingError(
            "settings-file", f"{file}: {key} is {value!r}, and that home is not known", hint="write the whole path"
        ) from error


def _syntax(path: Path, text: str, message: str) -> SettingError:
    match = _PLACE.match(message)
    lines = text.splitlines() or [""]
    line, column = len(lines), len(lines[-1]) + 1
    if match and match["line"]:
        line, column = int(match["line"]), int(match["column"])
    # The line itself is not shown: somebody may have written a key into it.
    return SettingError(
        "settings-syntax",
        f"{path}, line {line}, column {column}: {match['what'] if match else message}",
        expected="TOML: key = value, strings in double quotes, true or false without",
        hint=f"sed -n {line}p {path}",
    )
