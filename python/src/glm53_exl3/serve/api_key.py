"""The API key: from a file, a systemd credential or the environment, and never shown.

vLLM takes it from its environment, which only its own user and root can read; an argument could be read by everybody
with `ps`, and vLLM 0.28.0 logs it.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from glm53_exl3.errors import SettingError

#: Variable from which vLLM reads the key.
VARIABLE: Final = "VLLM_API_KEY"
#: `LoadCredential=api-key:/path` of a unit puts the file of this name into $CREDENTIALS_DIRECTORY.
CREDENTIAL: Final = "api-key"
_MOST_BYTES: Final = 4096
#: What an HTTP header can carry after `Bearer `.
_KEY: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class ApiKey:
    """A key, which no `repr` and no traceback shows.

    Attributes:
        value: the key.
        source: where it is from, for messages.
    """

    value: str = field(repr=False)
    source: str


def read_api_key(file: Path | None, environment: Mapping[str, str]) -> ApiKey | None:
    """The key that clients must send: of the file, else of the credential, else of VLLM_API_KEY, else none.

    Raises:
        SettingError: `api-key-file`, it cannot be read; `api-key-value`, it does not hold one key; `api-key-open`,
            everybody on this machine can read it.
    """
    if file is not None:
        return _read(file, str(file))
    directory = environment.get("CREDENTIALS_DIRECTORY")
    if directory and (Path(directory) / CREDENTIAL).exists():
        return _read(Path(directory) / CREDENTIAL, f"the systemd credential {CREDENTIAL}")
    inherited = environment.get(VARIABLE)
    return ApiKey(_require_key(inherited, VARIABLE), VARIABLE) if inherited else None


def _read(path: Path, source: str) -> ApiKey:
    try:
        with path.open("rb") as opened:
            mode = stat.S_IMODE(path.stat().st_mode)
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingError(
            "api-key-file", f"the API key cannot be read from {source}: {error.strerror}", hint=f"ls -l {path}"
        ) from error
    if mode & stat.S_IRWXO:
        # Refused and not only warned of: one command mends it, and a key in the Nix store is caught by it.
        raise SettingError(
            "api-key-open",
            f"everybody on this machine can use the API key in {source}",
            expected="no permissions for others, as in 0600 or 0640",
            found=f"{mode:04o}",
            hint=f"chmod o= {path}, and make a new key if others use this machine",
        )
    return ApiKey(_require_key(content.decode("latin-1").strip(), source), source)


def _require_key(text: str, source: str) -> str:
    """`text`, when it is one key. Says nothing of what it is otherwise."""
    if len(text) <= _MOST_BYTES and _KEY.fullmatch(text):
        return text
    lines = len(text.splitlines())
    found = "nothing" if not text else f"{lines} lines" if lines > 1 else "blanks or other signs within, or too much"
    raise SettingError(
        "api-key-value",
        f"{source} does not hold one API key",
        expected=f"one line of at most {_MOST_BYTES} printable ASCII characters without blanks",
        found=found,
        hint="(umask 077; openssl rand -hex 32 > api-key), then --api-key-file api-key",
    )
