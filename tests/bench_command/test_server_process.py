"""Finding the server of a port, on a made-up `/proc` and on this machine's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.bench.server_process import (
    ServerProcess,
    find_server,
    is_vllm,
    parse_flags,
    relevant_variables,
)

SERVE = ["/v/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/packs/k2", "--port", "8000"]
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


class Proc:
    """A `/proc` as far as it is read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "net").mkdir()
        self.sockets([])

    def sockets(self, entries: list[tuple[int, str, int]], table: str = "tcp") -> None:
        """Sockets by port, state and inode."""
        lines = [
            f"   {n}: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode}\n"
            for n, (port, state, inode) in enumerate(entries)
        ]
        (self.root / "net" / table).write_text(HEADER + "".join(lines))

    def process(
        self, pid: int, command: list[str], *, parent: int = 1, inodes: tuple[int, ...] = (), environment: str = ""
    ) -> Path:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "cmdline").write_text("\0".join(command) + "\0")
        (folder / "environ").write_text(environment)
        (folder / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0")
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        return folder


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_listener_is_found_by_its_socket(proc: Proc) -> None:
    proc.sockets([(8000, "01", 1), (8000, "0A", 2), (9000, "0A", 3)])
    proc.process(10, ["client"], inodes=(1,))
    proc.process(11, SERVE, inodes=(7, 2), environment="HOME=/root\0GLM53_EXL3_KERNEL=reference\0VLLM_API_KEY=x\0")
    assert find_server(8000, proc.root) == ServerProcess(11, "/packs/k2", {}, {"GLM53_EXL3_KERNEL": "reference"})


def test_a_listener_on_ipv6_is_found(proc: Proc) -> None:
    proc.sockets([(8000, "0A", 2)], "tcp6")
    proc.process(11, SERVE, inodes=(2,))
    assert isinstance(find_server(8000, proc.root), ServerProcess)


def test_the_flags_of_a_child_are_those_of_its_parent(proc: Proc) -> None:
    proc.sockets([(8000, "0A", 2)])
    proc.process(11, [*SERVE, "--api-server-count", "2"])
    proc.process(12, ["VLLM::APIServer_0"], parent=11, inodes=(2,))
    found = find_server(8000, proc.root)
    assert isinstance(found, ServerProcess)
    assert (found.pid, found.flags) == (11, {"--api-server-count": "2"})


def test_what_else_listens_is_named(proc: Proc) -> None:
    proc.sockets([(8000, "0A", 2)])
    proc.process(11, ["ssh", "-L", "8000:spark:8000"], inodes=(2,))
    assert find_server(8000, proc.root) == "what listens on port 8000 is not vLLM: ssh -L 8000:spark:8000"


def test_nothing_listens(proc: Proc) -> None:
    proc.sockets([(8000, "01", 1)])
    assert find_server(8000, proc.root) == "nothing listens on port 8000 here"


@pytest.mark.parametrize(("flags", "port"), [(["--port", "8123"], 8123), (["--port=8123"], 8123), ([], 8000)])
def test_a_server_of_another_user_is_found_by_its_command_line(proc: Proc, flags: list[str], port: int) -> None:
    proc.sockets([(port, "0A", 2)])
    proc.process(9, ["/opt/vllm/bin/python", "/opt/vllm/bin/glm53-exl3", "bench", "serve"])
    folder = proc.process(11, [*SERVE[:5], *flags])
    # As /proc shows to others: neither descriptors nor environment.
    for path in (folder / "fd", folder / "environ"):
        path.rmdir() if path.is_dir() else path.unlink()
    assert find_server(port, proc.root) == ServerProcess(11, "/packs/k2", {}, None)


def test_an_unseen_listener_is_said_to_be_unseen(proc: Proc) -> None:
    proc.sockets([(8000, "0A", 2)])
    proc.process(11, [*SERVE[:5], "--port", "9000"])
    assert find_server(8000, proc.root) == "this user may not see which process listens on port 8000"


@pytest.mark.parametrize(
    "command",
    [
        SERVE,
        ["/v/bin/python3", "/v/bin/vllm", "serve", "m"],
        ["vllm", "serve", "m"],
        ["/nix/store/x/bin/python3.12", "-B", "/nix/store/y/bin/.vllm-wrapped", "serve"],
        ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"],
    ],
)
def test_a_vllm_server_is_known_by_its_command(command: list[str]) -> None:
    assert is_vllm(command)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["python", "vllm.py", "serve"],
        ["/opt/vllm/bin/glm53-exl3", "serve", "pack"],
        ["vllm", "bench", "serve"],
        ["VLLM::EngineCore"],
        ["tail", "-f", "vllm.log"],
    ],
)
def test_what_is_no_vllm_server_is_not_taken_for_one(command: list[str]) -> None:
    assert not is_vllm(command)


def test_flags_of_every_form() -> None:
    command = [*SERVE, "--host=0.0.0.0", "--max_num_seqs", "4", "--enforce-eager", "--cudagraph-capture-sizes"]
    command += ["1", "2", "--seed=-1", "--rope-theta", "-5", "-tp", "2", "--speculative-config", '{"k": 3}']
    assert parse_flags(command) == (
        "/packs/k2",
        {
            "--cudagraph-capture-sizes": "1 2",
            "--enforce-eager": "true",
            "--max-num-seqs": "4",
            "--rope-theta": "-5",
            "--seed": "-1",
            "--speculative-config": '{"k": 3}',
            "-tp": "2",
        },
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--api-key", "hush"],
        ["--api-key=hush"],
        ["--api_key", "hush", "hush2"],
        ["--hf-token", "hush"],
        ["--ssl-keyfile-password=hush"],
    ],
)
def test_secrets_of_the_command_line_are_left_out(flags: list[str]) -> None:
    assert "hush" not in repr(parse_flags([*SERVE, *flags, "--seed", "1"]))
    assert parse_flags([*SERVE, *flags, "--seed", "1"])[1] == {"--seed": "1"}


def test_the_model_of_the_older_entry_point() -> None:
    assert parse_flags(["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]) == ("m", {})


def test_variables_that_matter_and_no_secret() -> None:
    given = {"VLLM_USE_V1": "1", "EXL3_FUSED_MOE": "1", "OMP_NUM_THREADS": "2", "VLLM_MAX_TOKENS_PER_EXPERT": "3"}
    secret = {"VLLM_API_KEY": "x", "VLLM_TOKEN": "x", "HF_TOKEN": "x", "GLM53_EXL3_SECRET": "x", "PATH": "/bin"}
    assert relevant_variables({**given, **secret}) == given


def test_a_process_of_this_machine_is_found(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("import socket\ns = socket.create_server(('127.0.0.1', 0))\n")
    with program.open("a") as file:
        file.write("print(s.getsockname()[1], flush=True)\ninput()\n")
    command = [sys.executable, str(program), "serve", str(tmp_path), "--enforce-eager"]
    environment = {**os.environ, "GLM53_EXL3_DECODE": "call"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        found = find_server(int(process.stdout.readline()))
        process.stdin.close()
    assert isinstance(found, ServerProcess)
    assert (found.pid, found.model, found.flags) == (process.pid, str(tmp_path), {"--enforce-eager": "true"})
    assert found.environment is not None
    assert found.environment["GLM53_EXL3_DECODE"] == "call"


def test_a_server_of_this_process_is_not_vllm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = find_server(port)
    assert isinstance(found, str)
    assert found.startswith(f"what listens on port {port} is not vLLM: ")
