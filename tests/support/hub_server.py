"""A Hub on loopback: the part of its HTTP interface that downloads use, and the ways in which it misbehaves.

Listing `GET /api/models/{repo}/revision/{revision}?blobs=true`, files `GET /{repo}/resolve/{commit}/{path}`, large ones
by a redirect to another origin, as the storage of the Hub is. Every request and every byte that was sent is recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

LISTING = "(listing)"
_PIECE = 64 << 10


def git_sha1(contents: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()


@dataclass
class Repository:
    """`commits` is contents by path, by commit; `branches` the commit each branch is at.

    `claimed` is sizes by path that the listing states instead of the true ones.
    """

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    licence: str | list[str] | None = "mit"
    gated: bool = False
    token: str | None = None
    claimed: dict[str, int] = field(default_factory=dict)

    def is_lfs(self, path: str) -> bool:
        return path.endswith((".safetensors", ".bin"))


@dataclass(frozen=True)
class Fault:
    """One misbehaviour, used up by one request.

    `status` answers with it, `headers` and `body`. Otherwise the file is sent: `cut` closes the connection after so
    many bytes of the answer, `hold` stops sending after so many until the hub's `release` is set, `wrong` flips the
    bits of one byte, `longer` appends bytes, `whole` ignores the range, `before` runs first.
    """

    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut: int | None = None
    hold: int | None = None
    wrong: bool = False
    longer: bool = False
    whole: bool = False
    before: Callable[[], object] | None = None


@dataclass(frozen=True)
class Request:
    """What was asked for: `path` is that of a file, or LISTING."""

    path: str
    revision: str
    start: int
    authorized: bool
    storage: bool


@dataclass
class Hub:
    """State of the server; tests change it between and during requests."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    requests: list[Request] = field(default_factory=list)
    bytes_sent: Counter[str] = field(default_factory=Counter)
    release: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    storage_url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, files: dict[str, bytes], commit: str = "a" * 40, **settings: object) -> Repository:
        """A repository with one commit on `main`."""
        repository = Repository({commit: files}, {"main": commit}, **settings)
        self.repositories[name] = repository
        return repository

    def misbehave(self, path: str, *faults: Fault) -> None:
        self.faults[path].extend(faults)

    def asked(self, path: str) -> list[Request]:
        """Requests for a file that its contents answered, or for the listing."""
        with self.lock:
            return [request for request in self.requests if request.path == path and not self._redirected(request)]

    def forget(self) -> None:
        """Count from here."""
        with self.lock:
            self.requests.clear()
            self.bytes_sent.clear()

    def _redirected(self, request: Request) -> bool:
        return not request.storage and request.path.endswith((".safetensors", ".bin"))


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A Hub and its storage, each with a port of its own."""
    hub = Hub()
    servers = [_Server(("127.0.0.1", 0), _handler(hub, storage)) for storage in (False, True)]
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.release.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what these tests are about."""


def _handler(hub: Hub, storage: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.storage = hub, storage
    return Handler


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    storage: bool
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        with contextlib.suppress(ConnectionError):
            if self.storage:
                _, name, commit, path = unquote(address.path).split("/", 3)
                self._file(name.replace("--", "/"), commit, path)
            elif match := re.fullmatch(r"/api/models/(.+?/[^/]+)/revision/(.+)", address.path):
                self._listing(match[1], unquote(match[2]), "blobs" in parse_qs(address.query))
            elif match := re.fullmatch(r"/(.+?/[^/]+)/resolve/([^/]+)/(.+)", address.path):
                self._resolve(match[1], unquote(match[2]), unquote(match[3]))
            else:
                self._answer(404, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _listing(self, name: str, revision: str, sizes: bool) -> None:
        self._record(LISTING, revision)
        fault = self._fault(LISTING)
        if fault.status:
            return self._answer(fault.status, dict(fault.headers), fault.body)
        repository = self._repository(name)
        if repository is None:
            return None
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        body = {
            "id": name,
            "sha": commit,
            "tags": [],
            "gated": "manual" if repository.gated else False,
            "cardData": {} if repository.licence is None else {"license": repository.licence},
            "siblings": [
                _sibling(path, contents, repository) if sizes else {"rfilename": path}
                for path, contents in repository.commits[commit].items()
            ],
        }
        if fault.before:
            fault.before()
        return self._answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name)
        if repository is None:
            return None
        commit = repository.branches.get(revision, revision)
        if path not in repository.commits.get(commit, {}):
            self._record(path, revision)
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        if not repository.is_lfs(path):
            return self._file(name, commit, path)
        self._record(path, revision)
        contents = repository.commits[commit][path]
        headers = {
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{hashlib.sha256(contents).hexdigest()}"',
            "X-Linked-Size": str(len(contents)),
            "Location": f"{self.hub.storage_url}/{name.replace('/', '--')}/{commit}/{quote(path)}",
        }
        return self._answer(302, headers)

    def _file(self, name: str, commit: str, path: str) -> None:
        contents = self.hub.repositories[name].commits[commit][path]
        fault = self._fault(path)
        start = 0 if fault.whole else self._start()
        self._record(path, commit)
        if fault.before:
            fault.before()
        if fault.status:
            return self._answer(fault.status, dict(fault.headers), fault.body)
        if start > len(contents):
            return self._answer(416, {"Content-Range": f"bytes */{len(contents)}"})
        if fault.wrong:
            contents = contents[:-1] + bytes([contents[-1] ^ 0xFF])
        if fault.longer:
            contents += b"surplus"
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(contents) - start))
        self.send_header("X-Repo-Commit", commit)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        self.send_header("ETag", f'"{git_sha1(contents)}"')
        self.end_headers()
        return None if self.command == "HEAD" else self._send(path, contents[start:], fault)

    def _send(self, path: str, body: bytes, fault: Fault) -> None:
        limit = next((bound for bound in (fault.cut, fault.hold) if bound is not None), len(body))
        for offset in range(0, limit, _PIECE):
            piece = body[offset : min(offset + _PIECE, limit)]
            self.wfile.write(piece)
            with self.hub.lock:
                self.hub.bytes_sent[path] += len(piece)
        if fault.hold is not None:
            self.hub.release.wait(60)
        if limit < len(body):
            self.close_connection = True

    def _repository(self, name: str) -> Repository | None:
        """The repository, or None after a refusal was sent as the Hub sends it."""
        repository = self.hub.repositories.get(name)
        sent = self.headers.get("Authorization")
        if repository is None:
            self._answer(404 if sent else 401, {"X-Error-Code": "RepoNotFound"})
        elif sent == "Bearer hf_expired":
            message = "Invalid credentials in Authorization header"
            self._answer(401, {"X-Error-Message": message}, json.dumps({"error": message}).encode())
        elif repository.gated:
            self._answer(403 if sent else 401, {"X-Error-Code": "GatedRepo"})
        elif repository.token is not None and sent != f"Bearer {repository.token}":
            self._answer(404 if sent else 401, {"X-Error-Code": "RepoNotFound"})
        else:
            return repository
        return None

    def _start(self) -> int:
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(match[1]) if match else 0

    def _record(self, path: str, revision: str) -> None:
        authorized = "Authorization" in self.headers
        with self.hub.lock:
            self.hub.requests.append(Request(path, revision, self._start(), authorized, self.storage))

    def _fault(self, path: str) -> Fault:
        with self.hub.lock:
            waiting = self.hub.faults[path]
            return waiting.popleft() if waiting else Fault()

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sibling(path: str, contents: bytes, repository: Repository) -> dict[str, object]:
    size = repository.claimed.get(path, len(contents))
    entry: dict[str, object] = {"rfilename": path, "size": size, "blobId": git_sha1(contents)}
    if repository.is_lfs(path):
        entry["blobId"] = git_sha1(b"pointer of " + contents[:64])
        entry["lfs"] = {
            "size": size,
            "sha256": hashlib.sha256(contents).hexdigest(),
            "pointerSize": 134,
        }
    return entry


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
