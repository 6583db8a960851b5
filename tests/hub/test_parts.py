"""Tokens, waiting, sizes and progress, without a Hub."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from huggingface_hub import constants
from rich.console import Console

from glm53_exl3.cli.fetch_progress import BarReporter, LineReporter, Meter, QuietReporter, reporter
from glm53_exl3.hub.errors import HubError, TransientError
from glm53_exl3.hub.failures import asked_wait
from glm53_exl3.hub.retry import Attempts, RetryPolicy
from glm53_exl3.hub.token import hide_token, read_token
from glm53_exl3.hub.units import in_bytes, in_time
from glm53_exl3.pack.manifest import MANIFEST_FILE, Manifest, ManifestFile, read_manifest, write_manifest


def test_a_named_token_file_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    assert read_token(None) is None
    monkeypatch.setenv("HF_TOKEN", "hf_environment")
    assert read_token(None) == "hf_environment"
    (tmp_path / "token").write_text("hf_file\n")
    assert read_token(tmp_path / "token") == "hf_file"
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    assert read_token(None) is None


@pytest.mark.parametrize(
    "contents", [b"", b"\n", b"two words", b"hf_a\nhf_b", b"hf_\xff\xfe", "hf_ß".encode(), b"a\0b"]
)
def test_a_token_that_cannot_be_sent_is_refused_without_quoting_it(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "token").write_bytes(contents)
    with pytest.raises(HubError) as caught:
        read_token(tmp_path / "token")
    assert caught.value.id == "token-file"
    assert caught.value.__cause__ is None
    assert not re.search(r"hf_|words|\\x", caught.value.render())


def test_the_token_is_cut_out_of_what_others_say() -> None:
    assert hide_token("Bearer hf_x: no", "hf_x") == "Bearer <token>: no"
    assert hide_token("Bearer hf_x: no", None) == "Bearer hf_x: no"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "12"}, 12.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "12"}, 55.0),
        ({"RateLimit": '"api";r=3;t=55', "Retry-After": "12"}, 12.0),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait(headers, now=10.0) == seconds


def test_waits_double_up_to_a_limit_and_end() -> None:
    policy = RetryPolicy()
    assert [policy.wait_seconds(failures, None) for failures in range(1, 7)] == [1, 2, 4, 8, 16, None]
    assert RetryPolicy(attempts=9).wait_seconds(8, None) == 30
    assert policy.wait_seconds(1, 900) == 900
    assert policy.wait_seconds(1, 901) is None


def test_attempts_wait_tell_and_give_up_with_the_last_cause() -> None:
    waited: list[float] = []
    notes: list[str] = []
    attempts = Attempts(RetryPolicy(attempts=3), waited.append, notes.append)

    def fail() -> None:
        raise TransientError(HubError("hub-busy", "it did not serve x", found="HTTP status 503", hint="later"))

    with pytest.raises(HubError) as caught:
        attempts.call(fail)
    assert waited == [1.0, 2.0]
    assert notes[0] == "it did not serve x (HTTP status 503); attempt 2 in 1 s"
    assert (caught.value.id, caught.value.found) == ("hub-busy", "HTTP status 503, 3 times in a row")


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (97_728_721_536, "91.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_read_as_people_write_them(num_bytes: int, text: str) -> None:
    assert in_bytes(num_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.4, "1:01"), (3599.6, "1:00:00"), (86400, "24:00:00")])
def test_times_read_as_people_write_them(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


def test_rate_and_time_left_count_only_what_arrives_now() -> None:
    now = [0.0]
    meter = Meter(100 << 20, 40 << 20, lambda: now[0])
    assert meter.line == "40.0 MiB of 100.0 MiB (40 %), 0 B/s, time left unknown"
    now[0] = 10.0
    meter.add(20 << 20)
    assert meter.line == "60.0 MiB of 100.0 MiB (60 %), 2.0 MiB/s, 0:20 left"
    # Half a minute of silence is no longer outweighed by what came before.
    now[0] = 39.0
    meter.add(0)
    now[0] = 45.0
    meter.add(0)
    assert meter.bytes_per_second == pytest.approx(0.0)
    meter.add(-(60 << 20))
    assert meter.bytes_per_second == 0.0


def test_lines_tell_beginning_and_end_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    chosen = reporter(Console(file=output, soft_wrap=True), quiet=False)
    assert isinstance(chosen, LineReporter)
    with chosen.progress("downloading", 2048, 1024) as advance:
        advance(512)
        chosen.note("[bold] is no markup")
        advance(512)
    assert output.getvalue().splitlines() == [
        "downloading: 1.0 KiB of 2.0 KiB",
        "[bold] is no markup",
        "downloading: 2.0 KiB of 2.0 KiB",
    ]


def test_a_terminal_gets_a_bar_and_quiet_gets_nothing() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    chosen = reporter(console, quiet=False)
    assert isinstance(chosen, BarReporter)
    with chosen.progress("downloading", 2048, 1024) as advance:
        advance(1536)
        advance(-512)
        chosen.note("a note")
    shown = output.getvalue()
    assert "a note" in shown
    assert "2.0/2.0 KiB" in shown
    silent = reporter(console, quiet=True)
    assert isinstance(silent, QuietReporter)
    with silent.progress("x", 1, 0) as advance:
        advance(1)
        silent.note("x")
    assert output.getvalue() == shown


def test_a_manifest_survives_being_written(tmp_path: Path) -> None:
    files = (ManifestFile("a", 1, "0" * 64, 5), ManifestFile("b/c", 0, None))
    manifest = Manifest("me/pack", "main", "a" * 40, "mit", False, files)
    assert read_manifest(tmp_path) is None
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_FILE]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema": 1', '"schema": 2'),
        ('"complete": false', '"complete": 0'),
        ('"path": "a"', '"path": "../a"'),
        ('"path": "a"', '"path": "b/c"'),
        ('"num_bytes": 1', '"num_bytes": -1'),
        ('"num_bytes": 1', '"num_bytes": true'),
        ("0" * 64, "0" * 63),
        ('"verified_mtime_ns": 5', '"verified_mtime_ns": "5"'),
        ('"repository": "me/pack",', ""),
        ("{", "["),
    ],
)
def test_a_manifest_that_was_tampered_with_is_refused(tmp_path: Path, old: str, new: str) -> None:
    files = (ManifestFile("a", 1, "0" * 64, 5), ManifestFile("b/c", 0, None))
    write_manifest(tmp_path, Manifest("me/pack", "main", "a" * 40, "mit", False, files))
    path = tmp_path / MANIFEST_FILE
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(Exception, match="manifest-invalid"):
        read_manifest(tmp_path)
