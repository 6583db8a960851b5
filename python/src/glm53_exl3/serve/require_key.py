"""ASGI middleware that asks for the API key on every path but those that only tell how the server is.

vLLM 0.32.0 guards `/v1`, `/v2`, `/inference` and `/cohere`; `/invocations` runs the same model without a key
(`AuthenticationMiddleware` in vllm/entrypoints/serve/middleware/authenticate.py). vLLM loads this class by its
`--middleware` flag, in its own process; nothing but the standard library is imported.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from glm53_exl3.serve.api_key import VARIABLE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Import path for vLLM's `--middleware`.
MIDDLEWARE: Final = "glm53_exl3.serve.require_key.RequireKey"
#: Paths that monitoring reads; they tell of load and version, and neither take nor give text.
OPEN_PATHS: Final = frozenset({"/health", "/ping", "/metrics", "/metrics/", "/version"})
_READING: Final = frozenset({"GET", "HEAD"})
_BODY: Final = b'{"error":"Unauthorized"}'
_POLICY_VIOLATION: Final = 1008


class RequireKey:
    """Middleware around vLLM's application.

    Args:
        app: the application.

    Raises:
        KeyError: the environment has no key; the server must not start open.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._digest = _digest(os.environ[VARIABLE].encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] not in {"http", "websocket"} or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})

    def _may_pass(self, scope: Scope) -> bool:
        method = scope.get("method")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        # A browser asks what it may send before it sends the key.
        if method == "OPTIONS" or (method in _READING and path in OPEN_PATHS):
            return True
        return hmac.compare_digest(self._digest, _digest(_bearer(scope["headers"])))


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The token of the first `Authorization` header, empty without one."""
    for name, value in headers:
        if name.lower() == b"authorization":
            scheme, _, token = value.partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
