"""Requests to a server whose pace and faults are known."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from glm53_exl3.bench.answer import Exchange
from glm53_exl3.bench.endpoint import parse_endpoint
from glm53_exl3.bench.exchange import ask
from glm53_exl3.serve.api_key import ApiKey
from support.openai_server import MODEL, Behaviour, openai_server

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "one two three"}]}
KEY = ApiKey("k3y-that-nobody-may-see", "test")


def asked(
    behaviour: Behaviour, *, timeout: float = 20.0, leave: int | None = None, key: ApiKey | None = None
) -> Exchange:
    with openai_server(behaviour) as url:
        return ask(parse_endpoint(url, key), BODY, timeout_seconds=timeout, leave_after_events=leave)


def test_pace_of_a_server_is_found() -> None:
    # Sleeps never end early, so lower bounds are exact; upper ones leave room for a busy machine.
    given = asked(Behaviour(first_seconds=0.2, spacing_seconds=0.1, events=11, tokens_per_event=3))
    assert given.outcome == "answered"
    assert (given.prompt_tokens, given.completion_tokens) == (5 + 2 * 3, 33)
    assert given.first_seconds is not None
    assert given.last_seconds is not None
    assert given.longest_gap_seconds is not None
    assert 0.2 <= given.first_seconds < 0.9
    assert 0.7 <= given.last_seconds - given.first_seconds < 3.0
    assert 0.1 <= given.longest_gap_seconds < 1.0
    assert given.last_seconds <= given.seconds < given.last_seconds + 1.0
    assert given.text == "word " * 11


@pytest.mark.parametrize(
    ("behaviour", "outcome", "detail"),
    [
        (Behaviour(status=500, message="no memory"), "server-error", "status 500: no memory"),
        (Behaviour(status=503), "server-error", "status 503: "),
        (Behaviour(status=429, message="slow down"), "rate-limited", "status 429: slow down"),
        (Behaviour(status=400, message="too\nlong"), "rejected", "status 400: too long"),
        (Behaviour(error_after=2), "stream-error", "the engine is dead"),
        (Behaviour(cut_after=2), "broken", "the stream ended before [DONE]"),
        (Behaviour(garbage_after=1), "malformed", "an event that is no part of an answer: b'<html>'"),
        (Behaviour(usage=False), "no-usage", ""),
        (Behaviour(events=0), "no-text", ""),
    ],
)
def test_each_fault_has_its_name(behaviour: Behaviour, outcome: str, detail: str) -> None:
    given = asked(behaviour)
    assert given.outcome == outcome
    assert given.detail.startswith(detail)


def test_a_closed_port_is_refused() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = ask(parse_endpoint(f"http://127.0.0.1:{port}"), BODY, timeout_seconds=5)
    assert (given.outcome, given.first_seconds) == ("refused", None)


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    assert ask(parse_endpoint("http://nobody.invalid"), BODY, timeout_seconds=5).outcome == "unreachable"


@pytest.mark.parametrize("slow", [Behaviour(first_seconds=5.0), Behaviour(spacing_seconds=0.1, events=200)])
def test_a_limit_holds_for_the_whole_request(slow: Behaviour) -> None:
    given = asked(slow, timeout=0.5)
    assert (given.outcome, given.detail) == ("timeout", "not done after 0.5 s")
    assert 0.5 <= given.seconds < 4.0


def test_a_server_that_accepts_and_says_nothing_times_out() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert ask(parse_endpoint(url), BODY, timeout_seconds=0.3).outcome == "timeout"


def test_a_client_leaves_after_the_event_it_was_told() -> None:
    given = asked(Behaviour(events=100, spacing_seconds=0.005), leave=3)
    assert (given.outcome, given.text) == ("left", "word " * 3)


def test_the_key_is_sent_and_never_kept() -> None:
    assert asked(Behaviour(key=KEY.value), key=KEY).outcome == "answered"
    refused = asked(Behaviour(key="another"), key=KEY)
    assert refused.outcome == "rejected"
    assert refused.detail == "status 401: Incorrect API key provided: Bearer <key>"
    assert KEY.value not in repr(refused)


def test_the_request_asks_for_a_stream_with_a_count() -> None:
    behaviour = Behaviour()
    asked(behaviour)
    assert behaviour.requests == [{**BODY, "stream": True, "stream_options": {"include_usage": True}}]


def test_a_prefix_of_the_url_is_kept_and_v1_is_not_doubled() -> None:
    endpoint = parse_endpoint("https://host/api/v1/")
    assert (endpoint.url, endpoint.port) == ("https://host:443/api", 443)
    assert replace(endpoint, prefix="").url == "https://host:443"
