"""How this machine asks the network: one HEAD request, and the Hub through its own library."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from typing import Final

from glm53_exl3.probes.host import HeadReply, HubIdentity

_SECONDS: Final = 8.0
_TOKEN_NAMES: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_REFUSED: Final = 401


def head(url: str) -> HeadReply:
    """Answer of a server to a HEAD request; an HTTP error is an answer too."""
    started = time.time()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS) as reply:
            date = reply.headers.get("Date")
    except urllib.error.HTTPError as error:
        date = error.headers.get("Date")
    except (OSError, ValueError) as error:
        return HeadReply(str(getattr(error, "reason", error)), None, time.time())
    local_time = (started + time.time()) / 2
    try:
        return HeadReply("", parsedate_to_datetime(date).timestamp() if date else None, local_time)
    except ValueError:
        return HeadReply("", None, local_time)


def hub_endpoint() -> str | None:
    """Address of the Hub, None when its library is not installed."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return constants.ENDPOINT


def hub_identity(endpoint: str | None = None) -> HubIdentity:
    """Whose token this machine has, by the Hub's own library.

    Args:
        endpoint: address of the Hub, that of the library by default.
    """
    try:
        from huggingface_hub import HfApi, constants, get_token
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        return HubIdentity("", "", False, "huggingface_hub is not installed")
    token = get_token()
    if token is None:
        return HubIdentity("", "", False, "")
    source = next((name for name in _TOKEN_NAMES if os.environ.get(name)), constants.HF_TOKEN_PATH)
    try:
        answer = HfApi(endpoint=endpoint).whoami(token=token)
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == _REFUSED:
            return HubIdentity(source, "", True, "")
        return HubIdentity(source, "", False, type(error).__name__)
    except Exception as error:  # offline in one of many ways, by the library's HTTP client
        return HubIdentity(source, "", False, type(error).__name__)
    return HubIdentity(source, str(answer.get("name", "")), False, "")
