"""A server with the interface of OpenAI that answers at a known pace, and misbehaves on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "pace"
#: Tokens of a prompt of n words; a chat template takes the constant.
TEMPLATE_TOKENS = 5
TOKENS_A_WORD = 2


@dataclass
class Behaviour:
    """How to answer.

    Attributes:
        first_seconds: before the first token; the event with the role is sent at once, as no server should.
        spacing_seconds: before each further event.
        events: with text.
        tokens_per_event: what the count of tokens says of each.
        status: of the answer to a chat request.
        message: of an answer that is not 200.
        usage: whether tokens are counted.
        cut_after: events after which the connection ends; None keeps it.
        error_after: events after which an error is reported within the stream; None for never.
        garbage_after: events after which something else than JSON is sent; None for never.
        key: that clients must send; empty for none.
        context: of the model.
        version: what `/version` says; None for a server that is not vLLM.
        fail_every: of so many chat requests one is answered with 500; 0 for none.
        requests: bodies of the chat requests that came.
        most_at_once: most chat requests that were answered at the same time.
    """

    first_seconds: float = 0.0
    spacing_seconds: float = 0.0
    events: int = 4
    tokens_per_event: int = 1
    status: int = 200
    message: str = ""
    usage: bool = True
    cut_after: int | None = None
    error_after: int | None = None
    garbage_after: int | None = None
    key: str = ""
    context: int = 4096
    version: str | None = "0.32.0"
    fail_every: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path == "/v1/models":
            model = {"id": MODEL, "max_model_len": self.behaviour.context}
            self._whole(200, {"object": "list", "data": [model]})
        elif self.path == "/version" and self.behaviour.version is not None:
            self._whole(200, {"version": self.behaviour.version})
        else:
            self._whole(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviour = self.behaviour
        if self._refused():
            return
        with behaviour.lock:
            behaviour.requests.append(body)
            behaviour.now += 1
            behaviour.most_at_once = max(behaviour.most_at_once, behaviour.now)
            failing = behaviour.fail_every and len(behaviour.requests) % behaviour.fail_every == 0
        try:
            if failing or behaviour.status != 200:
                self._whole(behaviour.status if not failing else 500, {"error": {"message": behaviour.message}})
            else:
                self._stream(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with behaviour.lock:
                behaviour.now -= 1

    def _stream(self, body: dict[str, Any]) -> None:
        behaviour = self.behaviour
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        events = min(behaviour.events, body.get("max_tokens", behaviour.events))
        for number in range(events):
            time.sleep(behaviour.spacing_seconds if number else behaviour.first_seconds)
            if number == behaviour.cut_after:
                self.close_connection = True
                return
            if number == behaviour.error_after:
                self._event({"error": {"message": "the engine is dead", "code": 500}})
                return
            if number == behaviour.garbage_after:
                self._chunk(b"data: <html>\n\n")
            finish = "length" if number == events - 1 else None
            self._event({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": finish}]})
        if behaviour.usage and body["stream_options"]["include_usage"]:
            words = len(body["messages"][0]["content"].split())
            prompt = TEMPLATE_TOKENS + TOKENS_A_WORD * words
            usage = {"prompt_tokens": prompt, "completion_tokens": events * behaviour.tokens_per_event}
            self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _refused(self) -> bool:
        key = self.behaviour.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self._whole(401, {"error": {"message": f"Incorrect API key provided: {self.headers.get('Authorization')}"}})
        return True

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(f": ping\n\ndata: {json.dumps(event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _whole(self, status: int, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def openai_server(behaviour: Behaviour) -> Iterator[str]:
    """URL of a server that behaves so, while the block runs."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
