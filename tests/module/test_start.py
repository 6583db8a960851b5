"""The commands of the units, started for real with nothing but what their units give them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from openai import OpenAI

from glm53_exl3.demo.faq import demo_pack, load_faq
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.supervisor import ServeExit
from support.fetching import pack_files
from support.hub_server import running_hub
from support.nixos_module import evaluate_module
from support.processes import family, survivors
from support.programs import require_program
from support.services import Started, service_manager, start_of

START_SECONDS = 400
KEY = "c0ffee" * 8
TOKEN = "hf_averysecrettoken"


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-instantiate")


def configuration(instance: str) -> str:
    program = Path(sys.executable).parents[1]
    package = f'{{ type = "derivation"; name = "venv"; outPath = "{program}"; }}'
    return f"{{ services.glm53-exl3 = {{ enable = true; instances.here = {{ package = {package}; {instance} }}; }}; }}"


@contextmanager
def running(started: Started, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The one command of a unit, under a service manager of ours; its log is `folder / "log"`."""
    (command,) = started.commands
    with service_manager(started, folder), (folder / "log").open("wb") as output:
        process = subprocess.Popen(command, env=started.environment, stdout=output, stderr=output, cwd="/")
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


@pytest.mark.timeout(900)
def test_the_service_of_the_demo_pack_becomes_ready_answers_and_ends(tmp_path: Path) -> None:
    key_file = tmp_path / "the key"
    key_file.write_text(KEY)
    port = free_port()
    settings = f'settings = {{ profile = "demo"; port = {port}; }};'
    text = f'runtime = "upstream"; gpu = false; pack = "{demo_pack()}"; apiKeyFile = "{key_file}"; {settings}'
    unit = evaluate_module(configuration(text), "units", system="x86_64-linux")["glm53-exl3-here"]
    started = start_of(unit, tmp_path)
    with running(started, tmp_path) as process:
        wait_until_ready(process, started, tmp_path / "log")
        # TimeoutStartSec lasts until serve asks for more, which has to be the first that it says.
        first = next(line for line in started.heard if not line.startswith("STATUS="))
        assert first.startswith("EXTEND_TIMEOUT_USEC=")
        require_answer(port)
        members = family(process.pid)
        # The unit has IPAddressDeny=any for all but this machine.
        assert [at for member in members for at in addresses(member) if not ip_address(at).is_loopback] == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
        assert survivors(members, 5) == []
    assert "STOPPING=1" in started.heard


@pytest.mark.timeout(1200)
def test_two_machines_serve_one_model_and_the_second_does_not_outlive_the_first(tmp_path: Path) -> None:
    """Both are this machine here, and the link between them is its loopback."""
    port, master_port = free_port(), free_port()
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    folders = [tmp_path / "first", tmp_path / "second"]
    machines = []
    for rank, folder in enumerate(folders):
        folder.mkdir()
        settings = f'profile = "demo"; port = {port}; nodes = 2; node-rank = {rank}; tensor-parallel = 2; '
        settings += f'master-address = "127.0.0.1"; master-port = {master_port}; limit-import = 600;'
        text = f'runtime = "upstream"; gpu = false; pack = "{demo_pack()}"; cluster.interface = "lo"; '
        text += f'apiKeyFile = "{key_file}"; settings = {{ {settings} }};'
        unit = evaluate_module(configuration(text), "units", system="x86_64-linux")["glm53-exl3-here"]
        machines.append(start_of(unit, folder))
    first, second = machines
    logs = [folder / "log" for folder in folders]
    with running(second, folders[1]) as other, running(first, folders[0]) as server:
        wait_until_ready(server, first, logs[0])
        assert "READY=1" in second.heard
        assert "canary: not asked, since this machine has no API" in logs[1].read_text()
        require_answer(port)
        members = family(other.pid)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, logs[0].read_text()
        # vLLM would wait for machine 0 for ever; the code is one that systemd restarts the unit after.
        assert other.wait(120) == ServeExit.STALL, logs[1].read_text()
        assert "error: machine-lost: machine 0 has been gone for " in logs[1].read_text()
        assert survivors(members, 5) == []


def require_answer(port: int) -> None:
    """Ask the demo pack one of its questions."""
    entry = load_faq()[3]
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY)
    message = {"role": "user", "content": entry.question}
    answer = client.chat.completions.create(model="glm53-exl3-demo", messages=[message], temperature=0)
    assert answer.choices[0].message.content == entry.answer


def wait_until_ready(process: subprocess.Popen[bytes], started: Started, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while "READY=1" not in started.heard:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def addresses(process: psutil.Process) -> set[str]:
    """Of this and of the other end of each socket of a process."""
    return {end.ip for each in process.net_connections("inet") for end in (each.laddr, each.raddr) if end}


def test_the_fetch_service_fetches_with_its_credential_into_the_folder_of_the_server(tmp_path: Path) -> None:
    token_file = tmp_path / "the token"
    token_file.write_text(TOKEN)
    text = f'gpu = false; pack = {{ repository = "me/pack"; }}; tokenFile = "{token_file}";'
    units = evaluate_module(configuration(text), "units", system="x86_64-linux")
    started = start_of(units["glm53-exl3-fetch-here"], tmp_path)
    (command,) = started.commands
    with running_hub() as hub:
        files = pack_files()
        hub.add("me/pack", files, token=TOKEN)
        environment = started.environment | {"HF_ENDPOINT": hub.url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    folder = tmp_path / "var" / "lib" / "glm53-exl3" / "packs" / "me" / "pack"
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert [path.name for path in folder.parents[1].iterdir()] == ["me"]
