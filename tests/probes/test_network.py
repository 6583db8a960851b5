"""The clock and the token, asked of a server on loopback through the real libraries."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from glm53_exl3.probes.host import LiveHost
from glm53_exl3.probes.hub import check_clock, check_token
from glm53_exl3.probes.network import head, hub_identity

GOOD_TOKEN = "hf_good"


class FakeHub(BaseHTTPRequestHandler):
    """Says the time of `skew_seconds` ago, and knows one token."""

    skew_seconds = 0.0

    def do_HEAD(self) -> None:
        self.send_response_only(405 if self.path == "/refuse" else 200)
        if self.path != "/dateless":
            self.send_header("Date", formatdate(time.time() - self.skew_seconds, usegmt=True))
        self.end_headers()

    def do_GET(self) -> None:
        status = {f"Bearer {GOOD_TOKEN}": 200, "Bearer hf_busy": 503}.get(self.headers.get("Authorization", ""), 401)
        body = json.dumps({"name": "someone", "type": "user"} if status == 200 else {"error": "no"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a Hub; no token is set."""
    from huggingface_hub import constants

    monkeypatch.setattr(FakeHub, "skew_seconds", 0.0)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_clock_is_compared_with_the_date_of_the_answer(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_clock(LiveHost().head(endpoint)).status == "ok"
    monkeypatch.setattr(FakeHub, "skew_seconds", 3600.0)
    result = check_clock(head(endpoint))
    assert (result.status, result.hint) == ("fail", "sudo timedatectl set-ntp true")
    assert result.measured in {"3600 s ahead of the Hub", "3601 s ahead of the Hub"}
    monkeypatch.setattr(FakeHub, "skew_seconds", -100.0)
    result = check_clock(head(endpoint))
    assert (result.status, result.measured.endswith("behind the Hub")) == ("warn", True)


def test_refusing_answer_has_a_date_too(endpoint: str) -> None:
    assert check_clock(head(f"{endpoint}/refuse")).status == "ok"


def test_answer_without_date_is_not_judged(endpoint: str) -> None:
    result = check_clock(head(f"{endpoint}/dateless"))
    assert (result.status, result.measured) == ("skip", "the Hub's answer has no date")


def test_no_answer_is_not_judged() -> None:
    result = check_clock(head("http://127.0.0.1:9"))
    assert result.status == "skip"
    assert "Connection refused" in result.measured


def test_no_token_is_fine(endpoint: str) -> None:
    result = check_token(hub_identity(endpoint))
    assert (result.status, result.measured) == ("ok", "none, public packs need none")


def test_good_token_is_named_by_its_user(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    result = check_token(hub_identity(endpoint))
    assert (result.status, result.measured) == ("ok", "of someone, from HF_TOKEN")


def test_refused_token_fails_by_its_place(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    result = check_token(hub_identity(endpoint))
    assert (result.status, result.measured) == ("fail", "the Hub refuses the token of HF_TOKEN")
    assert result.hint == "hf auth login, or go without: unset HF_TOKEN"
    assert "hf_old" not in f"{result}"


def test_hub_in_trouble_or_away_is_not_judged(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_busy")
    assert check_token(hub_identity(endpoint)).status == "skip"
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    away = check_token(hub_identity("http://127.0.0.1:9"))
    assert away.status == "skip"
    assert away.measured.startswith("the Hub could not be asked: ")
