"""Options of a server to command line and environment."""

from pathlib import Path

from glm53_exl3.serve.argv import ServerOptions, vllm_command, vllm_environment


def test_command_has_every_option() -> None:
    options = ServerOptions(
        model=Path("/pack"),
        served_name="m",
        port=8000,
        tensor_parallel_size=2,
        expert_parallel=True,
        enforce_eager=True,
        kv_cache_memory_bytes=1024,
        extra=("--seed", "1"),
    )
    command = vllm_command(options)
    assert command[2:5] == ["vllm.entrypoints.cli.main", "serve", "/pack"]
    assert command[-2:] == ["--seed", "1"]
    text = " ".join(command)
    for part in (
        "--served-model-name m",
        "--host 127.0.0.1 --port 8000",
        "--tensor-parallel-size 2",
        "--kv-cache-memory-bytes 1024",
        "--enable-expert-parallel",
        "--enforce-eager",
        "--dtype auto",
    ):
        assert part in text
    assert options.url == "http://127.0.0.1:8000"


def test_command_leaves_out_what_is_off() -> None:
    text = " ".join(vllm_command(ServerOptions(model=Path("/pack"), served_name="m", port=1)))
    for flag in ("--enable-expert-parallel", "--enforce-eager", "--kv-cache-memory-bytes"):
        assert flag not in text


ONE_RANK = ServerOptions(model=Path("/pack"), served_name="m", port=1)
TWO_RANKS = ServerOptions(model=Path("/pack"), served_name="m", port=1, tensor_parallel_size=2)


def test_environment_is_inherited_without_telemetry() -> None:
    environment = vllm_environment(ONE_RANK, {"PATH": "/bin", "DO_NOT_TRACK": "0"}, 8)
    assert environment["PATH"] == "/bin"
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert "OMP_NUM_THREADS" not in environment


def test_ranks_share_the_cores_unless_the_user_bound_them() -> None:
    environment = vllm_environment(TWO_RANKS, {}, 8)
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "4"
    assert vllm_environment(TWO_RANKS, {}, 1)["OMP_NUM_THREADS"] == "1"
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0-3|4-7", "OMP_NUM_THREADS": "3"}
    assert bound.items() <= vllm_environment(TWO_RANKS, bound, 8).items()
