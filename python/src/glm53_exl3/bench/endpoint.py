"""The server to measure: its address, its key, and what it says of itself."""

from __future__ import annotations

import http.client
import ipaddress
import json
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.serve.api_key import ApiKey

_DESCRIBE_SECONDS: Final = 10.0
_HIDDEN: Final = "<key>"
_MOST_BYTES: Final = 1 << 20
_LOOPBACK_NAME: Final = "localhost"


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes:
        scheme: `http` or `https`.
        host: name or address.
        port: TCP port.
        prefix: path before `/v1`, empty or with a leading slash.
        api_key: sent as bearer token; None sends none.
    """

    scheme: str
    host: str
    port: int
    prefix: str = ""
    api_key: ApiKey | None = None

    @property
    def url(self) -> str:
        """Base URL, without `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def is_loopback(self) -> bool:
        """Whether it can only be a process of this machine, or a tunnel that one opened."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == _LOOPBACK_NAME

    def connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        """A new connection, not yet opened. No proxy of the environment is asked."""
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_seconds)

    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        headers = {"Content-Type": "application/json", "Accept": "*/*"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key.value}"
        return headers

    def hide_key(self, text: str) -> str:
        """A text without the key, should the server have echoed it."""
        return text.replace(self.api_key.value, _HIDDEN) if self.api_key is not None else text


def parse_endpoint(url: str, api_key: ApiKey | None = None) -> Endpoint:
    """The server at a URL such as `http://127.0.0.1:8000`; a `/v1` at its end is taken for granted.

    Raises:
        BenchError: `url-invalid`.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise BenchError(
            "url-invalid",
            # Only this much of it: what stands before an @ may be a password.
            f"{url.rpartition('@')[2]!r} is not the base URL of a server",
            expected="http or https, a host and perhaps a port, without user, query or fragment",
            hint="--url http://127.0.0.1:8000",
        )
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Endpoint(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), prefix, api_key)


@dataclass(frozen=True)
class ServedModel:
    """A model that a server lists.

    Attributes:
        name: what requests ask for.
        max_model_len_tokens: prompt and answer together; None when the server does not say.
    """

    name: str
    max_model_len_tokens: int | None


def served_model(endpoint: Endpoint, name: str | None) -> ServedModel:
    """The model to measure: the one of that name, or the first that the server lists.

    Raises:
        BenchError: `server-unreachable`, `api-key-refused`, `server-answer`, `model-not-served`.
    """
    answer = _get_json(endpoint, "/v1/models")
    try:
        models = [ServedModel(str(entry["id"]), _tokens(entry.get("max_model_len"))) for entry in answer["data"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise _strange(endpoint, "/v1/models", f"{type(error).__name__}: {error}") from error
    wanted = [model for model in models if name is None or model.name == name]
    if not wanted:
        names = ", ".join(model.name for model in models) or "none"
        raise BenchError(
            "model-not-served",
            f"{endpoint.url} does not serve {name!r}" if name else f"{endpoint.url} serves no model",
            found=names,
            hint=f"--model {models[0].name}" if models else "glm53-exl3 serve PACK",
        )
    return wanted[0]


def vllm_version(endpoint: Endpoint) -> str | None:
    """Version of the vLLM behind it, None when it is another server."""
    try:
        version = _get_json(endpoint, "/version")["version"]
    except (BenchError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) else None


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _get_json(endpoint: Endpoint, path: str) -> Any:
    connection = endpoint.connection(_DESCRIBE_SECONDS)
    try:
        connection.request("GET", endpoint.prefix + path, headers=endpoint.headers())
        response = connection.getresponse()
        status, body = response.status, response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(
            "server-unreachable",
            f"{endpoint.url} does not answer: {error or type(error).__name__}",
            hint="glm53-exl3 serve PACK, or name another server: --url http://HOST:PORT",
        ) from error
    finally:
        connection.close()
    if status in (401, 403):
        raise BenchError(
            "api-key-refused",
            f"{endpoint.url} refuses the key" if endpoint.api_key else f"{endpoint.url} asks for a key",
            found=f"status {status}",
            hint="--api-key-file FILE, with the file that the server was given",
        )
    if status != 200:
        raise _strange(endpoint, path, f"status {status}")
    try:
        return json.loads(body)
    except ValueError as error:
        raise _strange(endpoint, path, f"{len(body)} bytes that are not JSON") from error


def _strange(endpoint: Endpoint, path: str, found: str) -> BenchError:
    return BenchError(
        "server-answer",
        f"{endpoint.url}{path} is not that of an OpenAI-compatible server",
        found=endpoint.hide_key(found),
        hint="--url with the address of the server itself, as in http://127.0.0.1:8000",
    )
