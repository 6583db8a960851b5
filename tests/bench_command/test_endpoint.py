"""What a server says of itself."""

from __future__ import annotations

import socket

import pytest

from glm53_exl3.bench.endpoint import ServedModel, parse_endpoint, served_model, vllm_version
from glm53_exl3.bench.errors import BenchError
from glm53_exl3.serve.api_key import ApiKey
from support.openai_server import MODEL, Behaviour, openai_server


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://spark:8888/v1", "http://spark:8888"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://host/llm", "https://host:443/llm"),
        ("http://host", "http://host:80"),
    ],
)
def test_urls(url: str, parsed: str) -> None:
    assert parse_endpoint(url).url == parsed


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", "http://u:pw@host", "http://host/?a=1", ""]
)
def test_what_is_no_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BenchError, match="url-invalid") as caught:
        parse_endpoint(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [("http://localhost:1", True), ("http://127.1.2.3:1", True), ("http://[::1]:1", True), ("http://spark:1", False)],
)
def test_loopback(url: str, loopback: bool) -> None:
    assert parse_endpoint(url).is_loopback is loopback


def test_model_context_and_version_are_asked_for() -> None:
    with openai_server(Behaviour(context=192, version="0.32.0")) as url:
        endpoint = parse_endpoint(url)
        assert served_model(endpoint, None) == served_model(endpoint, MODEL) == ServedModel(MODEL, 192)
        assert vllm_version(endpoint) == "0.32.0"


def test_another_server_has_no_vllm_version() -> None:
    with openai_server(Behaviour(version=None)) as url:
        assert vllm_version(parse_endpoint(url)) is None


def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    with openai_server(Behaviour()) as url, pytest.raises(BenchError, match="model-not-served") as caught:
        served_model(parse_endpoint(url), "other")
    assert (caught.value.found, caught.value.hint) == (MODEL, f"--model {MODEL}")


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(BenchError, match="server-unreachable"):
        served_model(parse_endpoint(f"http://127.0.0.1:{port}"), None)


def test_a_missing_and_a_wrong_key_are_told_apart() -> None:
    with openai_server(Behaviour(key="right")) as url:
        with pytest.raises(BenchError, match=r"api-key-refused: .* asks for a key"):
            served_model(parse_endpoint(url), None)
        with pytest.raises(BenchError, match=r"api-key-refused: .* refuses the key") as caught:
            served_model(parse_endpoint(url, ApiKey("wr0ng", "test")), None)
        assert "wr0ng" not in str(caught.value)
        assert served_model(parse_endpoint(url, ApiKey("right", "test")), None).name == MODEL


@pytest.mark.parametrize("suffix", ["/elsewhere"])
def test_another_service_is_not_taken_for_a_server(suffix: str) -> None:
    with openai_server(Behaviour()) as url, pytest.raises(BenchError, match="server-answer") as caught:
        served_model(parse_endpoint(url + suffix), None)
    assert caught.value.found == "status 404"
