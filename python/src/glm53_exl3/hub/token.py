"""The access token: from a file or the environment, never from the command line, never shown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from glm53_exl3.hub.errors import HubError

_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
_HIDDEN: Final = "<token>"
#: `LoadCredential=hub-token:/path` of a unit puts the file of this name into $CREDENTIALS_DIRECTORY.
CREDENTIAL: Final = "hub-token"


def read_token(token_file: Path | None) -> str | None:
    """The token to send, None when there is none.

    A file that was named comes first, then the systemd credential `hub-token`; otherwise huggingface_hub looks in
    `HF_TOKEN` and then in its own token file.

    Raises:
        HubError: `token-file`: the file cannot be read, or what was found cannot be a token.
    """
    token_file = token_file or _credential()
    if token_file is None:
        return _from_library()
    try:
        token = token_file.expanduser().read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        # A decode error quotes the bytes that it could not read.
        found = error.strerror or "unreadable" if isinstance(error, OSError) else "bytes that are not ASCII"
        raise _unusable(f"the token file {token_file} cannot be read", found) from None
    return _checked(token, f"the token file {token_file}")


def hide_token(text: str, token: str | None) -> str:
    """A text without the token, should a server have echoed it."""
    return text.replace(token, _HIDDEN) if token else text


def _credential() -> Path | None:
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(directory) / CREDENTIAL if directory else None
    return path if path is not None and path.exists() else None


def _from_library() -> str | None:
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        token = get_token()
    except (OSError, ValueError):
        raise _unusable("the token of huggingface_hub cannot be read", "") from None
    return None if token is None else _checked(token, "HF_TOKEN, or the token file of huggingface_hub,")


def _checked(token: str, origin: str) -> str:
    # Anything else would be refused by the HTTP library with a message that quotes it.
    if not _TOKEN.fullmatch(token):
        found = f"{len(token)} characters, not all of them printable ASCII" if token else "nothing"
        raise _unusable(f"{origin} holds no token", found)
    return token


def _unusable(what: str, found: str) -> HubError:
    return HubError(
        "token-file",
        what,
        expected="one line with an access token of the Hub",
        found=found,
        hint="hf auth login, or name another file with --token-file; public packs need no token",
    )
