"""What is read off a stream, with times that are given and so exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glm53_exl3.bench.answer import Answer, Ended


def delta(finish: str | None = None, **parts: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": parts, "finish_reason": finish}]}).encode()


def usage(**counts: Any) -> bytes:
    return json.dumps({"choices": [], "usage": counts}).encode()


def taken(*events: tuple[float, bytes]) -> Answer:
    answer = Answer(started=100.0)
    for now, data in events:
        answer.take(data, now)
    return answer


def test_times_count_from_the_first_text_to_the_event_that_ends_the_answer() -> None:
    answer = taken(
        (100.25, delta(role="assistant", content="")),
        (101.0, delta(content="a")),
        (103.0, delta(content="b")),
        (103.5, delta(content="c")),
        (104.0, delta("stop", content="")),
        (109.0, usage(prompt_tokens=7, completion_tokens=4)),
    )
    given = answer.exchange(answer.judge(), "", 9.0)
    assert (given.outcome, given.text) == ("answered", "abc")
    assert (given.first_seconds, given.last_seconds, given.longest_gap_seconds) == (1.0, 4.0, 2.0)
    assert (given.prompt_tokens, given.completion_tokens, given.cached_tokens) == (7, 4, None)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_the_first_token(name: str) -> None:
    answer = taken(
        (101.0, delta(**{name: "hm"})),
        (102.0, delta(content="yes")),
        (103.0, usage(prompt_tokens=1, completion_tokens=2)),
    )
    given = answer.exchange(answer.judge(), "", 3.0)
    assert (given.first_seconds, given.reasoning, given.text) == (1.0, "hm", "yes")


def test_a_tool_call_is_an_answer() -> None:
    answer = taken((101.0, delta(tool_calls=[{"index": 0}])), (102.0, usage(prompt_tokens=1, completion_tokens=9)))
    assert answer.judge() == "answered"


def test_tokens_are_those_of_the_server_and_not_events() -> None:
    answer = taken((101.0, delta(content="three tokens at once")), (101.5, usage(prompt_tokens=1, completion_tokens=3)))
    assert answer.num_events == 1
    assert answer.exchange("answered", "", 1.0).completion_tokens == 3


def test_cached_tokens_of_the_prompt_are_kept() -> None:
    answer = taken((101.0, usage(prompt_tokens=40, completion_tokens=1, prompt_tokens_details={"cached_tokens": 32})))
    assert answer.exchange("answered", "", 1.0).cached_tokens == 32


def test_nothing_said_is_no_answer() -> None:
    assert taken((101.0, delta("stop", content="")), (101.0, usage(prompt_tokens=1, completion_tokens=1))).judge() == (
        "no-text"
    )


@pytest.mark.parametrize("counts", [{}, {"prompt_tokens": 3}, {"prompt_tokens": 3, "completion_tokens": "4"}])
def test_an_answer_without_count_cannot_be_measured(counts: dict[str, Any]) -> None:
    assert taken((101.0, delta(content="a")), (102.0, usage(**counts))).judge() == "no-usage"


@pytest.mark.parametrize(
    "data",
    [
        b"<html>",
        b"3",
        b"[]",
        b'{"choices": 3}',
        b'{"choices": [3]}',
        b'{"choices": [{"delta": {"content": 3}}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_event_is_malformed(data: bytes) -> None:
    with pytest.raises(Ended) as caught:
        taken((101.0, data))
    assert caught.value.outcome == "malformed"


@pytest.mark.parametrize("data", [b'{"error": {"message": "dead"}}', b'{"error": "dead"}'])
def test_an_error_within_the_stream_is_named(data: bytes) -> None:
    with pytest.raises(Ended) as caught:
        taken((101.0, data))
    assert (caught.value.outcome, caught.value.detail) == ("stream-error", "dead")


def test_an_error_of_null_is_none() -> None:
    assert taken((101.0, b'{"error": null, "choices": [{"delta": {"content": "a"}}]}')).num_events == 1
