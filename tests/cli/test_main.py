"""The command line: help, exit codes and how errors are printed. Run as a user runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("glm53-exl3")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)


def test_version_and_help() -> None:
    assert run("--version").stdout == "glm53-exl3 0.1.0\n"
    text = run("--help").stdout
    assert "demo" in text
    assert "quantize" in text


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.modules.update(torch=None, vllm=None); sys.argv = ['glm53-exl3', 'demo', '--help']\n"
    code += "from glm53_exl3.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--keep" in result.stdout


def test_users_mistake_exits_1_without_traceback(tmp_path: Path) -> None:
    result = run("quantize", str(tmp_path), str(tmp_path / "out"), "--bits", "2")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: file-missing: config.json is missing in ")
    assert "\n\nhint: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], ["quantize"], ["demo", "--port", "x"], ["demo", "--port", "0"]])
def test_usage_exits_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_our_bug_exits_3_with_a_request_to_report() -> None:
    code = "import sys; from glm53_exl3.cli import main\n"
    code += "main.application = lambda named: 1 / 0\nmain.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 3
    assert "ZeroDivisionError" in result.stderr
    assert "error: internal: this is a bug of glm53-exl3" in result.stderr


def test_taken_port_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = run("demo", "--port", str(port))
    assert result.returncode == 1
    assert f"error: port-taken: port {port}" in result.stderr
    assert "--port" in result.stderr


def test_demo_lists_its_questions() -> None:
    lines = run("demo", "--list").stdout.splitlines()
    assert "What is EXL3?" in lines
    assert len(lines) >= 38
