"""Fetching from the local Hub, within this process or as a user does."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from huggingface_hub import constants

from glm53_exl3.cli import main
from glm53_exl3.hub.client import HubClient
from glm53_exl3.hub.errors import HubError
from glm53_exl3.hub.fetch import Fetch, FetchOptions, Outcome
from glm53_exl3.hub.licences import Terms
from glm53_exl3.hub.names import parse_wanted
from glm53_exl3.hub.retry import RetryPolicy
from glm53_exl3.hub.source import Finder
from glm53_exl3.pins import PackPin
from support.hub_server import Hub

PROGRAM = Path(sys.executable).with_name("glm53-exl3")
COMMIT_A, COMMIT_B = "a" * 40, "b" * 40
SHARD_1, SHARD_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
#: As in production, but for the waiting.
FAST = RetryPolicy(first_wait_seconds=0.01, longest_wait_seconds=0.02)


def noise(num_bytes: int, seed: int = 0) -> bytes:
    """Bytes that no compression or coincidence reproduces."""
    return random.Random(seed).randbytes(num_bytes)


def pack_files(shard_bytes: int = 700_000) -> dict[str, bytes]:
    """Files of a small pack: two in git, one of them in a folder and empty, and two large ones."""
    return {
        "config.json": b'{"model_type": "glm5_next"}',
        "notes/empty.txt": b"",
        SHARD_1: noise(shard_bytes, 1),
        SHARD_2: noise(shard_bytes, 2),
    }


@dataclass
class Recorder:
    """A reporter that remembers; `progressed` is bytes by title."""

    notes: list[str] = field(default_factory=list)
    progressed: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    on_progress: Callable[[str, int], object] = lambda title, num_bytes: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def progress(self, title: str, total_bytes: int, done_bytes: int) -> Iterator[Callable[[int], None]]:
        self.progressed[title], self.totals[title] = done_bytes, total_bytes

        def advance(num_bytes: int) -> None:
            with self.lock:
                self.progressed[title] += num_bytes
            self.on_progress(title, num_bytes)

        yield advance

    @property
    def text(self) -> str:
        return "\n".join(self.notes)


@dataclass
class Gatekeeper:
    """Answers what a user would be asked, and remembers what it was."""

    accepts: bool = True
    terms: list[Terms] = field(default_factory=list)
    downloads: list[int] = field(default_factory=list)

    def accept_terms(self, terms: Terms) -> None:
        self.terms.append(terms)
        if not self.accepts:
            raise HubError("licence-not-accepted", "no", hint="accept it")

    def before_download(self, num_bytes: int) -> None:
        self.downloads.append(num_bytes)


@dataclass
class Fetcher:
    """Fetches `me/pack` of a hub into one folder, each time as a new process would."""

    hub: Hub
    directory: Path
    policy: RetryPolicy = FAST
    timeout_seconds: float = 10.0
    token: str | None = None
    packs: dict[str, PackPin] = field(default_factory=dict)
    url: str | None = None
    parallel: int = 4

    def __call__(
        self,
        name: str = "me/pack",
        *,
        revision: str | None = None,
        repair: bool = False,
        offline: bool = False,
        recorder: Recorder | None = None,
        gate: Gatekeeper | None = None,
    ) -> Outcome:
        recorder = recorder or Recorder()
        wanted = parse_wanted(name, revision, self.packs)
        options = FetchOptions(wanted, self.directory, self.parallel, repair, self.policy)
        finder = Finder(wanted, self.directory, repair, self.policy, time.sleep, recorder.note)
        client = HubClient(self.token, endpoint=self.url or self.hub.url, timeout_seconds=self.timeout_seconds)
        source = finder.offline("--offline was given") if offline else finder.online(client)
        return Fetch(options, source, client, recorder).run(gate or Gatekeeper())

    def holds(self, files: dict[str, bytes]) -> bool:
        """Whether the folder holds these contents."""
        return all((self.directory / path).read_bytes() == contents for path, contents in files.items())


def environment(hub: Hub, home: Path, **changes: str) -> dict[str, str]:
    """For a process that knows only this Hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "HUGGING", "GLM53_", "TRANSFORMERS_")) and not name.lower().endswith("_proxy")
    }
    return kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "HOME": str(home), "COLUMNS": "200"} | changes


def start_command(hub: Hub, home: Path, *arguments: str | Path, **changes: str) -> subprocess.Popen[str]:
    """`glm53-exl3 fetch` in a process of its own."""
    return subprocess.Popen(
        [PROGRAM, "fetch", *arguments],
        env=environment(hub, home, **changes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run_process(hub: Hub, home: Path, *arguments: str | Path, **changes: str) -> Ended:
    """`glm53-exl3 fetch` in a process of its own, until it ends."""
    process = start_command(hub, home, *arguments, **changes)
    output, errors = process.communicate(timeout=60)
    return Ended(process.returncode, output, errors)


def run_command(hub: Hub, home: Path, *arguments: str | Path, **changes: str) -> Ended:
    """`glm53-exl3 fetch` within this process, which saves the second that starting one takes."""
    output, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        # The library reads these once, when it is imported.
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "hf" / "token"))
        for name, value in environment(hub, home, **changes).items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["glm53-exl3", "fetch", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.StringIO())
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Ended(int(code or 0), output.getvalue(), errors.getvalue())


def snapshot(directory: Path) -> dict[str, bytes]:
    """Contents by path of everything below a folder."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
