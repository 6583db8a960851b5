"""The API key: where it comes from, what is refused, and what asks for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.api_key import read_api_key
from glm53_exl3.serve.require_key import MIDDLEWARE, OPEN_PATHS, RequireKey

SECRET = "s3cret-Of_32.signs=+/~!"


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def refusal(file: Path | None, environment: dict[str, str] | None = None) -> SettingError:
    with pytest.raises(SettingError) as caught:
        read_api_key(file, environment or {})
    return caught.value


@pytest.mark.parametrize("text", [SECRET, f"{SECRET}\n", f"  {SECRET}\r\n\n"])
def test_key_of_a_file_is_stripped(tmp_path: Path, text: str) -> None:
    key = read_api_key(write(tmp_path / "key", text), {})
    assert key is not None
    assert key.value == SECRET
    assert SECRET not in repr(key)


def test_file_wins_over_credential_over_environment(tmp_path: Path) -> None:
    environment = {"VLLM_API_KEY": "of-environment", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    sources = []
    for file in (None, None, write(tmp_path / "key", "of-file")):
        key = read_api_key(file, environment)
        assert key is not None
        sources.append((key.value, key.source))
        write(tmp_path / "api-key", "of-credential", 0o400)
    assert sources == [
        ("of-environment", "VLLM_API_KEY"),
        ("of-credential", "the systemd credential api-key"),
        ("of-file", str(tmp_path / "key")),
    ]


@pytest.mark.parametrize("environment", [{}, {"VLLM_API_KEY": ""}, {"CREDENTIALS_DIRECTORY": "/nowhere"}])
def test_no_key_is_none(environment: dict[str, str]) -> None:
    assert read_api_key(None, environment) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "nothing"),
        (" \n\n", "nothing"),
        ("one\ntwo\n", "2 lines"),
        ("a b", "blanks"),
        ("schl\u00fcssel", "other signs"),
        ("a\0b", "other signs"),
        ("x" * 4097, "too much"),
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str, found: str) -> None:
    error = refusal(write(tmp_path / "key", text))
    assert error.id == "api-key-value"
    assert found in error.found
    assert text.strip() == "" or text.strip() not in str(error)


def test_inherited_key_that_is_none_is_refused() -> None:
    assert refusal(None, {"VLLM_API_KEY": "a b"}).id == "api-key-value"


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o444, 0o602])
def test_file_open_to_others_is_refused_with_the_command_that_closes_it(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", SECRET, mode)
    error = refusal(path)
    assert (error.id, error.found) == ("api-key-open", f"{mode:04o}")
    assert error.hint.startswith(f"chmod o= {path}")
    assert SECRET not in str(error)
    os.chmod(path, mode & 0o770)  # noqa: PTH101 - as the hint does it
    assert read_api_key(path, {}) is not None


def test_group_may_read_it(tmp_path: Path) -> None:
    assert read_api_key(write(tmp_path / "key", SECRET, 0o640), {}) is not None


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing").id == "api-key-file"
    assert refusal(tmp_path).id == "api-key-file"
    assert str(tmp_path / "nothing") in refusal(tmp_path / "nothing").what


def ask(monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any]) -> list[MutableMapping[str, Any]]:
    """What comes back from the middleware around an application that answers `passed`."""
    monkeypatch.setenv("VLLM_API_KEY", SECRET)
    sent: list[MutableMapping[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing is read")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    asyncio.run(RequireKey(application)(scope, receive, send))
    return sent


def http(method: str, path: str, authorization: str | None = None, **more: Any) -> dict[str, Any]:
    headers = [] if authorization is None else [(b"Authorization", authorization.encode())]
    return {"type": "http", "method": method, "path": path, "headers": headers, **more}


@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/tokenize", "/", "/health/x", "/metricsx", "//health"])
@pytest.mark.parametrize(
    "authorization", [None, "", SECRET, f"Basic {SECRET}", "Bearer", "Bearer x", f"Bearer {SECRET}x"]
)
def test_every_path_asks_for_the_key(monkeypatch: pytest.MonkeyPatch, path: str, authorization: str | None) -> None:
    start, body = ask(monkeypatch, http("POST", path, authorization))
    assert (start["status"], body["body"]) == (401, b'{"error":"Unauthorized"}')
    assert ask(monkeypatch, http("GET", path, authorization))[0]["status"] == 401


@pytest.mark.parametrize("authorization", [f"Bearer {SECRET}", f"bearer {SECRET}", f"BEARER  {SECRET} "])
def test_the_key_opens_every_path(monkeypatch: pytest.MonkeyPatch, authorization: str) -> None:
    assert ask(monkeypatch, http("POST", "/invocations", authorization)) == [{"type": "passed"}]


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_health_and_metrics_can_be_read_without_and_only_read(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    assert ask(monkeypatch, http("GET", path)) == [{"type": "passed"}]
    assert ask(monkeypatch, http("GET", f"/prefix{path}", root_path="/prefix")) == [{"type": "passed"}]
    assert ask(monkeypatch, http("POST", path))[0]["status"] == 401


def test_preflight_of_a_browser_and_the_start_of_the_server_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, http("OPTIONS", "/v1/models")) == [{"type": "passed"}]
    assert ask(monkeypatch, {"type": "lifespan"}) == [{"type": "passed"}]


def test_websocket_without_a_key_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": []}
    assert ask(monkeypatch, scope) == [{"type": "websocket.close", "code": 1008}]
    scope["headers"] = [(b"authorization", f"Bearer {SECRET}".encode())]
    assert ask(monkeypatch, scope) == [{"type": "passed"}]


def test_without_a_key_the_server_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(KeyError):
        RequireKey(lambda scope, receive, send: asyncio.sleep(0))


def test_import_path_is_that_of_the_class() -> None:
    assert f"{RequireKey.__module__}.{RequireKey.__qualname__}" == MIDDLEWARE
