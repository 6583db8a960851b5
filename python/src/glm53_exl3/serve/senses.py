"""How the supervisor learns of a server: its HTTP endpoints, asked directly whatever proxy is set."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from collections.abc import Mapping
from typing import Final

from glm53_exl3.serve.watch import EngineState, parse_metrics

_REQUEST_SECONDS: Final = 2.0
#: A proxy of the environment must not be asked for a server on this machine.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_healthy(url: str, served_name: str, headers: Mapping[str, str]) -> bool:
    """Whether our server answers, and not another one that took the port first.

    Args:
        url: its base URL.
        served_name: the model that it lists.
        headers: with which it lists its models, as :attr:`~glm53_exl3.serve.argv.ServerCommand.headers` has them.
    """
    try:
        _get(f"{url}/health", {})
        models = json.loads(_get(f"{url}/v1/models", headers))
        return any(model["id"] == served_name for model in models["data"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False


def engine_state(url: str) -> EngineState | None:
    """State of the engine, None when there is no answer."""
    try:
        return parse_metrics(_get(f"{url}/metrics", {}).decode(errors="replace"))
    except (OSError, http.client.HTTPException):
        return None


def is_listening(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection((address, port), _REQUEST_SECONDS).close()
    except OSError:
        return False
    return True


def _get(address: str, headers: Mapping[str, str]) -> bytes:
    with _DIRECT.open(urllib.request.Request(address, headers=dict(headers)), timeout=_REQUEST_SECONDS) as answer:
        content: bytes = answer.read()
    return content
