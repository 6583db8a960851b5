"""A fetch that is killed and started again downloads nothing twice. The real command, in its own process."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from glm53_exl3.pack.manifest import read_manifest
from support.fetching import SHARD_1, SHARD_2, noise, run_process, start_command
from support.hub_server import Fault, Hub, wait_until

SIZE = 5_000_000
HELD_1, HELD_2 = 3_000_000, 1_000_000
FILES = {"config.json": b"{}", SHARD_1: noise(SIZE, 1), SHARD_2: noise(SIZE, 2)}


def begun(directory: Path) -> int:
    """Bytes in partial files."""
    return sum(path.stat().st_size for path in directory.glob(".glm53-exl3/partial/*"))


def fetch_until_held(hub: Hub, home: Path, directory: Path) -> subprocess.Popen[str]:
    """A fetch whose two shards have stopped half way, with everything that was sent on disk."""
    hub.misbehave(SHARD_1, Fault(hold=HELD_1))
    hub.misbehave(SHARD_2, Fault(hold=HELD_2))
    process = start_command(hub, home, "me/pack", "--dir", directory, HF_HUB_DOWNLOAD_TIMEOUT="60")
    # What is smaller than a buffer of the file may not have been written yet.
    wait_until(lambda: begun(directory) > HELD_1 + HELD_2 - 2 * 8192 and recorded(directory) == ["config.json"], 50.0)
    return process


def recorded(directory: Path) -> list[str]:
    """Files that the manifest calls verified."""
    manifest = read_manifest(directory)
    return [file.path for file in manifest.files if file.verified_mtime_ns is not None] if manifest else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_downloaded_twice(hub: Hub, tmp_path: Path, number: signal.Signals) -> None:
    hub.add("me/pack", FILES)
    directory = tmp_path / "pack"
    process = fetch_until_held(hub, tmp_path, directory)
    process.send_signal(number)
    output, errors = process.communicate(timeout=20)
    assert output == ""
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 128 + number
        assert "interrupted; " in errors
        assert "of 9.5 MiB are there, and the same command resumes" in errors
        assert "Traceback" not in errors
    assert json.loads((directory / "glm53-exl3-manifest.json").read_text())["complete"] is False
    on_disk = begun(directory)
    hub.release.set()
    hub.forget()
    result = run_process(hub, tmp_path, "me/pack", "--dir", directory)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{directory}\n"
    assert {path: (directory / path).read_bytes() for path in FILES} == FILES
    # The second run was sent exactly what the first had not written.
    assert sum(hub.bytes_sent.values()) == 2 * SIZE - on_disk
    assert hub.asked("config.json") == []
    assert sum(request.start for path in (SHARD_1, SHARD_2) for request in hub.asked(path)) == on_disk
    # Nor was anything read again to find out whether it is right.
    assert "checking" not in result.stderr


def test_two_processes_do_not_write_into_one_folder(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    directory = tmp_path / "pack"
    process = fetch_until_held(hub, tmp_path, directory)
    second = run_process(hub, tmp_path, "me/pack", "--dir", directory)
    assert second.returncode == 1
    assert f"error: fetch-running: another fetch writes to {directory}" in second.stderr
    hub.release.set()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert {path: (directory / path).read_bytes() for path in FILES} == FILES
