"""Conditions of machine, pack and program."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3 import __version__
from glm53_exl3.bench.conditions import (
    Server,
    machine_conditions,
    pack_conditions,
    pack_folder,
    program_conditions,
    server_conditions,
)
from glm53_exl3.bench.endpoint import Endpoint, ServedModel
from glm53_exl3.bench.server_process import ServerProcess
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import PackError
from glm53_exl3.pack.manifest import Manifest, write_manifest
from glm53_exl3.probes.host import CommandOutput, LiveHost

MEMINFO = "MemTotal:       127603084 kB\nMemFree:  100 kB\nMemAvailable:  5000 kB\n"
ARM_CPUINFO = "processor\t: 0\nCPU part\t: 0xd85\n\nprocessor\t: 1\nCPU part\t: 0xd87\n"
LSCPU = "Architecture:  aarch64\n  Model name:          Cortex-X925\n  Model name:          Cortex-A725\n"


class Spark(LiveHost):
    """A GB10, as far as a benchmark looks at it."""

    def __init__(self, outputs: dict[str, CommandOutput], files: dict[str, str]) -> None:
        self.outputs, self.files = outputs, files

    def machine(self) -> str:
        return "aarch64"

    def kernel(self) -> str:
        return "Linux 6.14.0-1013-nvidia"

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def which(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.outputs else None

    def run(self, *command: str) -> CommandOutput | None:
        return self.outputs.get(command[0])


def spark(gpu: CommandOutput) -> Spark:
    files = {"/proc/meminfo": MEMINFO, "/proc/cpuinfo": ARM_CPUINFO}
    return Spark({"nvidia-smi": gpu, "lscpu": CommandOutput(0, LSCPU, "")}, files)


def test_a_gb10_is_described() -> None:
    assert machine_conditions(spark(CommandOutput(0, "NVIDIA GB10, 12.1, 580.95.05\n", "")), runs_server=True) == {
        "runs": "server and client",
        "architecture": "aarch64",
        "kernel": "Linux 6.14.0-1013-nvidia",
        "cpu": "Cortex-X925, Cortex-A725",
        "cores": 2,
        "memory_bytes": 127603084 * 1024,
        "gpus": ["NVIDIA GB10 (12.1), driver 580.95.05"],
    }


def test_a_gpu_that_does_not_answer_is_unknown_and_none_is_none() -> None:
    broken = spark(CommandOutput(9, "NVIDIA-SMI has failed", ""))
    assert machine_conditions(broken, runs_server=True)["gpus"] is None
    broken.outputs.pop("nvidia-smi")
    assert machine_conditions(broken, runs_server=False)["gpus"] == []


def test_this_machine_is_described() -> None:
    found = machine_conditions(LiveHost(), runs_server=False)
    assert found["runs"] == "client"
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 2**30


def test_the_pack_is_known_by_commit_and_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "model-00001.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "model-00002.safetensors").write_bytes(b"x" * 32)
    sha256 = hashlib.sha256(b'{"a": 1}').hexdigest()
    unknown = {"repository": None, "commit": None, "config_sha256": sha256, "weight_bytes": 42}
    assert pack_conditions(tmp_path) == unknown
    write_manifest(tmp_path, Manifest("owner/pack", "main", "a" * 40, "mit", True, ()))
    assert pack_conditions(tmp_path) == {**unknown, "repository": "owner/pack", "commit": "a" * 40}


def test_no_pack_is_unknown_and_a_wrong_folder_refused(tmp_path: Path) -> None:
    assert set(pack_conditions(None).values()) == {None}
    with pytest.raises(PackError, match="file-missing"):
        pack_conditions(tmp_path)


def server(process: ServerProcess | str) -> Server:
    return Server(Endpoint("http", "127.0.0.1", 8000), ServedModel("m", 192), "0.32.0", process)


def test_the_pack_of_the_server_is_taken_from_its_command_line(tmp_path: Path) -> None:
    running = server(ServerProcess(1, str(demo_pack()), {}, {}))
    assert pack_folder(None, running) == demo_pack()
    assert pack_folder(tmp_path, running) == tmp_path
    assert pack_folder(None, server(ServerProcess(1, "owner/name", {}, {}))) is None
    assert pack_folder(None, server(ServerProcess(1, str(tmp_path), {}, {}))) is None
    assert pack_folder(None, server("not found")) is None


def test_a_server_that_was_not_found_has_unknown_flags() -> None:
    assert server_conditions(server("not found")) == {
        "vllm_version": "0.32.0",
        "model": "m",
        "max_model_len_tokens": 192,
        "flags": None,
        "environment": None,
    }
    found: dict[str, Any] = server_conditions(server(ServerProcess(1, "m", {"--seed": "1"}, None)))
    assert (found["flags"], found["environment"]) == ({"--seed": "1"}, None)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_revision_is_that_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "package" / "__init__.py"
    source.parent.mkdir()
    source.write_text("")
    monkeypatch.setattr("glm53_exl3.__file__", str(source))
    git(tmp_path, "init", "--quiet")
    # A virtual environment within somebody else's checkout is no checkout of ours.
    assert program_conditions(LiveHost())["revision"] is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    git(tmp_path, "tag", "--annotate", "v1", "--message", "tag")
    revision = git(tmp_path, "rev-parse", "HEAD")
    assert program_conditions(LiveHost())["revision"] == revision
    source.write_text("x = 1\n")
    found = program_conditions(LiveHost())
    assert (found["revision"], found["version"]) == (f"{revision}-dirty", __version__)
