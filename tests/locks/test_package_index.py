"""What is asked of the index, with a server on this machine and a resolver's answer in place of it."""

from __future__ import annotations

import io
import os
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import package_index
import pytest
from wheel_files import TARGETS, Wheel

from support.tiny_locks import entry

SPARK = TARGETS["aarch64-linux"]
PADDING = 3_000_000


def wheel_content() -> bytes:
    """A wheel with METADATA before three megabytes that nobody needs to read for it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = "Metadata-Version: 2.1\nName: paint\nVersion: 1.0\nRequires-Dist: pigment<4\n"
        archive.writestr("paint-1.0.dist-info/METADATA", text)
        archive.writestr("paint/_vendor/other-1.dist-info/METADATA", "Name: other\n")
        archive.writestr("paint/data.bin", os.urandom(PADDING))
    return buffer.getvalue()


class Server(HTTPServer):
    """Serves one file in parts; the first `failures` requests are answered with 503."""

    content = wheel_content()
    failures = 0
    served = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.server.failures:
            self.server.failures -= 1
            self.send_error(503)
            return
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        part = self.server.content[first : last + 1]
        self.server.served += len(part)
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def listed(server: Server) -> package_index.Listed:
    wheel = Wheel.from_entry("1.0", entry("paint", "1.0", []))
    return package_index.Listed(wheel, f"http://127.0.0.1:{server.server_port}/", len(server.content))


def test_metadata_is_read_out_of_the_remote_file(server: Server) -> None:
    found = package_index.metadata(listed(server))
    assert found.name == "paint"
    assert [str(line) for line in found.requires_dist or []] == ["pigment<4"]
    assert server.served < PADDING / 4


def test_a_request_that_fails_in_passing_is_repeated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.failures = package_index.ATTEMPTS - 1
    assert package_index.metadata(listed(server)).name == "paint"


def test_an_index_that_stopped_answering_is_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.failures = package_index.ATTEMPTS
    with pytest.raises(SystemExit, match="the index stopped answering: HTTP Error 503"):
        package_index.metadata(listed(server))


def pylock(*filenames: str) -> str:
    files = ", ".join(
        f'{{ url = "index/{name}", size = {place}, hashes = {{ sha256 = "{"ab" * 32}" }} }}'
        for place, name in enumerate(filenames)
    )
    return f'[[packages]]\nname = "paint"\nversion = "1.0"\nwheels = [{files}]\n'


def answer_with(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(lines: Any, target: Any, output: Path, *options: str) -> None:
        output.write_text(text, encoding="utf-8")

    monkeypatch.setattr(package_index, "_compile", compile_nothing)


def test_the_best_wheel_of_a_release_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    best = "paint-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"
    others = ["paint-1.0-py3-none-any.whl", "paint-1.0-cp312-cp312-manylinux_2_40_aarch64.whl"]
    answer_with(pylock(*others, best, "paint-1.0-7build-cp312-cp312-manylinux_2_39_aarch64.whl"), monkeypatch)
    found = package_index.wheels_of({"paint": "1.0"}, SPARK)
    assert found["paint"].wheel.filename == best
    assert found["paint"].size == 2


@pytest.mark.parametrize("filenames", [[], ["paint-1.0-cp312-cp312-win_arm64.whl"]])
def test_a_release_without_a_fitting_wheel_is_named(filenames: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(pylock(*filenames), monkeypatch)
    with pytest.raises(SystemExit, match="no wheel for aarch64-linux: paint"):
        package_index.wheels_of({"paint": "1.0"}, SPARK)
