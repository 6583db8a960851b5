"""One streamed chat request.

The standard library's client: of four that were tried it takes the least time for an event (docs/benchmark.md), and a
load generator shares the machine with the server that it measures.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Any, Final

from glm53_exl3.bench.answer import Answer, Ended, Exchange, Outcome, error_message
from glm53_exl3.bench.endpoint import Endpoint

_PATH: Final = "/v1/chat/completions"
_MOST_LINE_BYTES: Final = 1 << 22
_MOST_DETAIL: Final = 200


def ask(
    endpoint: Endpoint, body: Mapping[str, Any], *, timeout_seconds: float, leave_after_events: int | None = None
) -> Exchange:
    """Send one request and read its answer to the end, or leave after so many events with text.

    Args:
        endpoint: the server.
        body: of the request; `stream` and `stream_options` are added.
        timeout_seconds: for all of it.
        leave_after_events: when to close the connection; None stays.
    """
    sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(sent).encode()
    started = time.perf_counter()
    answer = Answer(started)
    connection = endpoint.connection(timeout_seconds)
    outcome: Outcome
    try:
        try:
            connection.connect()
        except TimeoutError:
            raise
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise Ended("refused" if refused else "unreachable", str(error)) from error
        _talk(endpoint, connection, payload, answer, started + timeout_seconds, leave_after_events)
        outcome, detail = answer.judge(), ""
    except Ended as failure:
        outcome, detail = failure.outcome, failure.detail
    except TimeoutError:
        outcome, detail = "timeout", f"not done after {timeout_seconds:g} s"
    except (OSError, http.client.HTTPException) as error:
        outcome, detail = "broken", str(error) or type(error).__name__
    finally:
        connection.close()
    printable = "".join(sign if sign.isprintable() else " " for sign in endpoint.hide_key(detail)[:_MOST_DETAIL])
    return answer.exchange(outcome, printable, time.perf_counter() - started)


def _talk(
    endpoint: Endpoint,
    connection: http.client.HTTPConnection,
    payload: bytes,
    answer: Answer,
    deadline: float,
    leave_after_events: int | None,
) -> None:
    # The connection forgets its socket when the server announces that it will close it.
    opened = connection.sock
    opened.settimeout(_left(deadline))
    connection.request("POST", endpoint.prefix + _PATH, payload, endpoint.headers())
    with closing(connection.getresponse()) as response:
        if response.status != 200:
            opened.settimeout(_left(deadline))
            raise _refusal(response)
        for data in _events(response, opened, deadline):
            answer.take(data, time.perf_counter())
            if leave_after_events is not None and answer.num_events >= leave_after_events:
                raise Ended("left")


def _events(response: http.client.HTTPResponse, opened: socket.socket, deadline: float) -> Iterator[bytes]:
    """Data of each server-sent event up to `[DONE]`; OpenAI's are one line each."""
    while True:
        opened.settimeout(_left(deadline))
        line = response.readline(_MOST_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise Ended("broken", "the stream ended before [DONE]")
        if not line.startswith(b"data:"):
            continue
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            return
        yield data


def _left(deadline: float) -> float:
    seconds = deadline - time.perf_counter()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _refusal(response: http.client.HTTPResponse) -> Ended:
    text = response.read(1 << 14).decode(errors="replace")
    with suppress(ValueError):
        text = error_message(json.loads(text)) or text
    detail = f"status {response.status}: {' '.join(text.split())}"
    if response.status == 429:
        return Ended("rate-limited", detail)
    return Ended("rejected" if 400 <= response.status < 500 else "server-error", detail)
