"""`glm53-exl3 serve` before vLLM starts: what is printed, what is refused, and with which exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.serve.ports import free_port
from support.packs import PackRecipe, edit_tensors, write_pack

PROGRAM = Path(sys.executable).with_name("glm53-exl3")
KEY = "f00dfeed" * 8


def serve(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, "serve", *arguments]
    clean = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean | environment)


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return serve(str(demo_pack()), "--profile", "demo", *arguments, **environment)


def test_print_shows_the_command_and_starts_nothing() -> None:
    result = demo("--print", "--port", "8123")
    assert result.returncode == 0, result.stderr
    assert f"serve {demo_pack()}" in result.stdout
    assert "--port 8123" in result.stdout
    assert "--kv-cache-memory-bytes 67108864" in result.stdout
    assert "VLLM_NO_USAGE_STATS=1" in result.stdout


def test_what_follows_two_dashes_goes_to_vllm_untouched() -> None:
    result = demo("--print", "--", "--seed", "7", "--uvicorn-log-level", "warning")
    assert result.stdout.rstrip().endswith("--seed 7 \\\n  --uvicorn-log-level warning")


def test_the_settings_file_may_name_the_pack_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(f'pack = "{demo_pack()}"\nprofile = "demo"\nport = 8111\nsequences = 4\n')
    result = serve("--settings", str(file), "--port", "8222", "--print", "--", "--seed", "7")
    assert result.returncode == 0, result.stderr
    assert "--port 8222" in result.stdout
    assert "--max-num-seqs 4" in result.stdout
    assert "--seed 7" in result.stdout


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text("prot = 8111\n")
    result = demo("--settings", str(file))
    assert result.returncode == 65
    assert result.stderr.startswith("error: setting-unknown: ")
    assert "hint: write port" in result.stderr


def test_the_key_is_in_no_output_and_in_no_argument(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    file.chmod(0o600)
    result = demo("--print", "--api-key-file", str(file), "--host", "0.0.0.0")
    assert result.returncode == 0, result.stderr
    assert KEY not in result.stdout + result.stderr
    assert "VLLM_API_KEY='***'" in result.stdout or "VLLM_API_KEY=***" in result.stdout


def test_an_open_server_needs_its_flag() -> None:
    refused = demo("--host", "0.0.0.0", "--print")
    assert refused.returncode == 65
    assert "allow-open" in refused.stderr
    assert demo("--host", "0.0.0.0", "--allow-open", "--print").returncode == 0


def test_a_taken_port_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = demo("--port", str(other.getsockname()[1]))
    assert result.returncode == 65
    assert result.stderr.startswith("glm53-exl3: ") or result.stderr.startswith("error: port-taken")
    assert "error: port-taken: " in result.stderr
    assert "vLLM is process" not in result.stderr


def test_a_pack_with_a_truncated_shard_is_refused_by_its_headers(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack", PackRecipe())
    shard = sorted(pack.glob("*.safetensors"))[0]
    with shard.open("rb+") as file:
        file.truncate(shard.stat().st_size - 1)
    result = serve(str(pack), "--profile", "demo", "--port", str(free_port()))
    assert result.returncode == 65
    assert "error: shard-truncated: " in result.stderr
    assert "vLLM is process" not in result.stderr


def test_a_lost_expert_is_refused_by_its_headers(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "pack", PackRecipe())
    edit_tensors(pack, lambda tensors: tensors.pop("model.layers.1.mlp.experts.2.up_proj.suh"))
    result = serve(str(pack), "--profile", "demo", "--port", str(free_port()))
    assert result.returncode == 65
    assert "model.layers.1.mlp.experts.2.up_proj.suh" in result.stderr


def test_preflight_runs_first_and_its_failures_are_named() -> None:
    result = demo("--preflight", "--port", str(free_port()))
    assert result.returncode == 65
    assert "error: preflight-failed: " in result.stderr
    # This machine is no Spark.
    assert "gpu: " in result.stderr
    assert "--no-preflight" in result.stderr


def test_without_preflight_it_says_what_that_skips() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    result = serve("/nowhere", "--profile", "demo", "--no-preflight", "--port", str(port))
    assert result.returncode == 65
    assert "preflight is skipped: " in result.stderr


@pytest.fixture
def _gb10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists a GB10; nothing else of one."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'NVIDIA GB10, 12.1, 580.95.05'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("_gb10")
def test_backend_that_cannot_run_is_refused_on_a_gpu_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for arguments, error in (
        ([], "extension-missing: glm53_exl3_kernels is not installed"),
        (["--kernel", "reference"], "reference-graphs: "),
        (["--kernel", "exllamav3", "--enforce-eager"], "extension-missing: glm53_exl3_exllamav3_ext is not installed"),
        (["--kernel", "native", "--enforce-eager"], "extension-missing: glm53_exl3_kernels is not installed"),
        (["--kernel", "marlin"], "setting-choice: --kernel is 'marlin'"),
    ):
        result = demo("--no-enforce-eager", "--port", str(free_port()), *arguments)
        assert result.returncode == 65, result.stderr
        assert f"error: {error}" in result.stderr
        assert "vLLM is process" not in result.stderr
    monkeypatch.setenv("GLM53_EXL3_KERNEL", "fast")
    assert "error: setting-value: GLM53_EXL3_KERNEL=fast" in demo("--port", str(free_port())).stderr


def test_too_little_memory_has_an_exit_code_of_its_own() -> None:
    result = demo("--memory-plan", "--floor", "500", "--port", str(free_port()), "--runtime", "upstream")
    assert result.returncode == 75
    assert "error: plan-memory: " in result.stderr


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--nonsense"], [str(demo_pack()), "surplus"]])
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = serve(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
