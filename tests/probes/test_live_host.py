"""What this machine answers through the interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.probes import host as host_module
from glm53_exl3.probes.host import LiveHost
from glm53_exl3.probes.memory import HostMemory
from glm53_exl3.probes.system import MemoryFacts, check_page_cache, read_limits, read_memory, read_system

HOST = LiveHost()


def test_programs_and_their_output(tmp_path: Path) -> None:
    output = HOST.run(sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert output is not None
    assert (output.returncode, output.stdout, output.stderr) == (3, "out\n", "err\n")
    assert HOST.run(str(tmp_path / "nothing")) is None
    assert HOST.which("sh") is not None
    assert HOST.which(str(tmp_path / "nothing")) is None


def test_program_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_COMMAND_SECONDS", 0.3)
    with pytest.raises(TimeoutError, match=r"did not end in 0\.3 s"):
        HOST.run(sys.executable, "-c", "import time; time.sleep(30)")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").write_bytes(b"\xff")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert HOST.read_text(f"{tmp_path}/a/lock") == "\ufffd"
    assert HOST.read_text(f"{tmp_path}/nothing") is None
    assert HOST.paths(f"{tmp_path}/*/lock") == [f"{tmp_path}/a/lock", f"{tmp_path}/b/lock"]
    assert HOST.real_path(f"{tmp_path}/b") == f"{tmp_path}/a"
    os.utime(tmp_path / "a" / "lock", (0, 0))
    assert (HOST.age_seconds(f"{tmp_path}/a/lock") or 0) > 1e9
    assert HOST.age_seconds(f"{tmp_path}/nothing") is None


def test_free_space_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    here, later = HOST.free_bytes(str(tmp_path)), HOST.free_bytes(str(tmp_path / "x" / "y"))
    assert here is not None
    assert later is not None
    assert abs(here - later) < 2**30


def test_taken_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert HOST.listen_error("127.0.0.1", port) == "Address already in use"
    assert HOST.listen_error("127.0.0.1", port) is None


def test_this_machine_has_a_system_memory_and_limits() -> None:
    assert read_system(HOST).kernel.startswith("Linux ")
    facts = read_memory(HOST, 2**30, "small", "*")
    assert isinstance(facts, MemoryFacts)
    assert facts.memory.total_bytes >= facts.memory.available_bytes > 0
    assert facts.needed_bytes == 5 * 2**30
    hard = read_limits(HOST).open_files.hard
    assert hard is None or hard > 0


def test_hint_that_drops_the_page_cache_can_be_pasted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(2**16))
    full = HostMemory(2**40, 0, 2**40, 2**40, 0, 0)
    result = check_page_cache(MemoryFacts(full, None, 2**30, "small", f"{tmp_path}/*.safetensors"))
    assert result.status == "warn"
    command = result.hint.removeprefix("drop it for the shards: ").partition("; or, as root")[0]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
