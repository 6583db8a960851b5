"""Settings and a plan to command line and environment; goldens and documents of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from glm53_exl3.cli.demo import demo_command, demo_settings
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.errors import PlanError, SettingError
from glm53_exl3.plan.memory import GIB
from glm53_exl3.plan.planner import memory_arguments, plan_memory
from glm53_exl3.probes.memory import HostMemory
from glm53_exl3.serve.api_key import ApiKey
from glm53_exl3.serve.argv import ServerCommand, build_command, plan_request, render_command
from glm53_exl3.serve.chat_template import find_chat_template
from glm53_exl3.serve.settings import Settings
from support.serve_documents import DOCUMENT, GOLDEN_SETTINGS, GOLDENS, REFRESH, golden, with_tables
from support.serving import DRAFT, MODEL, WEIGHTS, combinations, command_of, name_of, plan_of, settings_of

KEY = ApiKey("s3cret", "a file")


def value(command: ServerCommand, flag: str) -> str:
    return command.argv[command.argv.index(flag) + 1]


def sizes(command: ServerCommand) -> list[int]:
    """Sizes of graphs, as the shell's words after the flag."""
    after = command.argv[command.argv.index("--cudagraph-capture-sizes") + 1 :]
    return [int(word) for word in after[: next(i for i, word in enumerate(after) if word.startswith("--"))]]


@pytest.mark.parametrize("name", GOLDEN_SETTINGS)
def test_command_is_that_of_its_golden(name: str) -> None:
    assert golden(name) == (GOLDENS / f"{name}.txt").read_text(), f"if this is meant: {REFRESH}"


def test_there_is_no_stale_golden() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(GOLDEN_SETTINGS)


def test_tables_of_the_document_are_those_of_the_code() -> None:
    text = DOCUMENT.read_text()
    assert with_tables(text) == text, f"if this is meant: {REFRESH}"


def test_memory_flags_are_those_of_the_plan() -> None:
    settings = settings_of(profile="long")
    flags = memory_arguments(plan_of(settings))
    argv = list(command_of(settings).argv)
    start = argv.index(flags[0])
    assert argv[start : start + len(flags)] == flags
    assert "--gpu-memory-utilization" in flags


def test_without_a_plan_vllm_measures() -> None:
    argv = command_of(settings_of(memory_plan=False, prefix_caching=False)).argv
    assert "--kv-cache-memory-bytes" not in argv
    assert "--gpu-memory-utilization" not in argv
    assert "--no-enable-prefix-caching" in argv
    given = command_of(settings_of(memory_plan=False, kv_cache_bytes=1 << 30))
    assert value(given, "--kv-cache-memory-bytes") == str(1 << 30)


def test_a_plan_of_other_settings_is_our_bug() -> None:
    with pytest.raises(ValueError, match="other settings"):
        build_command(settings_of(context=4096), plan_of(settings_of(context=8192)))


def test_a_plan_of_a_discrete_gpu_will_do() -> None:
    settings = settings_of()
    request = plan_request(settings)
    request = replace(request, server=replace(request.server, unified=False))
    plan = plan_memory(request, MODEL, WEIGHTS, HostMemory(140 * GIB, 140 * GIB, 140 * GIB, 0, 0, 0))
    assert value(build_command(settings, plan), "--max-model-len") == "8192"


def test_a_plan_that_does_not_fit_is_refused_unless_forced() -> None:
    memory = HostMemory(96 * GIB, 96 * GIB, 96 * GIB, 0, 0, 0)
    plan = plan_memory(plan_request(settings_of()), MODEL, WEIGHTS, memory)
    with pytest.raises(PlanError) as caught:
        build_command(settings_of(), plan)
    assert caught.value.id == "plan-memory"
    assert build_command(settings_of(force=True), plan).argv


def test_plan_is_asked_for_what_is_served() -> None:
    request = plan_request(settings_of(speculative_tokens=6, floor=12.5, batched_tokens=1024, kv_cache_bytes=1 << 30))
    assert (request.floor_bytes, request.kv_cache_bytes) == (int(12.5 * GIB), 1 << 30)
    assert (request.server.speculation, request.server.speculative_tokens) == ("mtp", 6)
    assert request.server.max_batched_tokens == 1024
    assert request.server.num_graphs == 9
    assert plan_request(settings_of(enforce_eager=True)).server.num_graphs == 0
    assert plan_request(settings_of(speculation="none")).server.num_graphs > 0


@pytest.mark.parametrize("settings", combinations(), ids=name_of)
def test_speculation_has_its_config_and_graphs_of_its_verified_tokens(settings: Settings) -> None:
    command = command_of(settings)
    if settings.speculation == "none":
        assert "--speculative-config" not in command.argv
        assert "--cudagraph-capture-sizes" not in command.argv
        return
    config = json.loads(value(command, "--speculative-config"))
    assert config["num_speculative_tokens"] + 1 in sizes(command)
    if settings.speculation == "mtp":
        assert config == {"method": "mtp", "num_speculative_tokens": 2}
    else:
        assert (config["method"], config["model"], config["attention_backend"]) == ("dflash", DRAFT, "TRITON_ATTN")
        assert config["kv_cache_dtype"] == "auto"


def test_draft_is_quantized_when_asked() -> None:
    flags = {"speculation": "dflash2", "draft": DRAFT}
    plain = json.loads(value(command_of(settings_of(**flags)), "--speculative-config"))
    assert "quantization" not in plain
    fp8 = json.loads(value(command_of(settings_of(**flags, draft_quantization="fp8")), "--speculative-config"))
    assert fp8 == plain | {"quantization": "fp8"}


def test_sizes_of_the_settings_replace_those_of_the_profile_and_eager_has_none() -> None:
    assert sizes(command_of(settings_of(capture_sizes=[3, 6]))) == [3, 6]
    assert sizes(command_of(settings_of(speculation="none", capture_sizes=[1, 2]))) == [1, 2]
    eager = command_of(settings_of(enforce_eager=True, capture_sizes=[3])).argv
    assert "--enforce-eager" in eager
    assert "--cudagraph-capture-sizes" not in eager


def test_what_is_empty_is_left_out() -> None:
    argv = command_of(settings_of(profile="demo")).argv
    for flag in ("--tool-call-parser", "--enable-auto-tool-choice", "--reasoning-parser", "--limit-mm-per-prompt"):
        assert flag not in argv
    assert json.loads(value(command_of(settings_of(profile="demo", images=0)), "--limit-mm-per-prompt")) == {"image": 0}


def test_further_arguments_come_last_and_untouched() -> None:
    argv = command_of(settings_of(extra=["--seed", "1", "--x.y", "{ }"])).argv
    assert argv[-4:] == ("--seed", "1", "--x.y", "{ }")


def test_rules_are_checked_here_too() -> None:
    with pytest.raises(SettingError) as caught:
        command_of(settings_of(host="0.0.0.0"))
    assert caught.value.id == "open-without-key"
    with pytest.raises(SettingError, match="VLLM_ATTENTION_BACKEND"):
        command_of(settings_of(), inherited={"VLLM_ATTENTION_BACKEND": "X"})


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("192.168.1.20", "http://192.168.1.20:8000"),
        ("spark.local", "http://spark.local:8000"),
    ],
)
def test_url_is_where_this_machine_reaches_it(host: str, url: str) -> None:
    assert command_of(settings_of(host=host), api_key=KEY).url == url


def test_environment_is_without_telemetry_and_network() -> None:
    command = command_of(settings_of())
    assert command.environment == {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "64",
        "VLLM_HOST_IP": "127.0.0.1",
        "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
    }
    whole = command.whole_environment({"PATH": "/bin", "DO_NOT_TRACK": "0"})
    assert (whole["PATH"], whole["DO_NOT_TRACK"]) == ("/bin", "1")


def test_upstream_lets_flashinfer_find_the_gpu() -> None:
    assert "FLASHINFER_CUDA_ARCH_LIST" not in command_of(settings_of(runtime="upstream")).environment


def test_tuning_of_the_user_stays() -> None:
    inherited = {"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "128", "FLASHINFER_CUDA_ARCH_LIST": "9.0a 12.1a"}
    environment = command_of(settings_of(), inherited=inherited).environment
    assert not inherited.keys() & environment.keys()


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_allocator_of_the_user_gets_what_it_lacks(name: str) -> None:
    def allocator(stated: str) -> dict[str, str]:
        environment = command_of(settings_of(), inherited={name: stated}).environment
        return {key: text for key, text in environment.items() if key.startswith("PYTORCH")}

    assert allocator("max_split_size_mb:64") == {name: "max_split_size_mb:64,expandable_segments:True"}
    assert allocator("expandable_segments:False") == {}


def test_ranks_share_the_cores_unless_the_user_bound_them() -> None:
    settings = settings_of(profile="demo", tensor_parallel=2, expert_parallel=True)
    command = command_of(settings, num_cores=8)
    assert value(command, "--tensor-parallel-size") == "2"
    assert "--enable-expert-parallel" in command.argv
    assert command.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert command.environment["OMP_NUM_THREADS"] == "4"
    assert command_of(settings, num_cores=1).environment["OMP_NUM_THREADS"] == "1"
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0-3|4-7", "OMP_NUM_THREADS": "3"}
    assert not bound.keys() & command_of(settings, inherited=bound).environment.keys()


def test_each_machine_has_its_share_of_the_ranks_and_its_address_on_the_link() -> None:
    pair = settings_of(profile="demo", tensor_parallel=4, nodes=2, node_rank=1, master_address="10.0.0.1")
    command = command_of(pair, num_cores=8, node_address="10.0.0.2", api_key=KEY)
    assert command.environment["OMP_NUM_THREADS"] == "4"
    assert command.environment["VLLM_HOST_IP"] == "10.0.0.2"
    assert "--headless" in command.argv
    # Without an API there is nothing to guard.
    assert "--middleware" not in command.argv
    inherited = {"VLLM_HOST_IP": "10.0.0.3"}
    assert "VLLM_HOST_IP" not in command_of(pair, inherited=inherited, node_address="10.0.0.2").environment
    assert command_of(settings_of()).environment["VLLM_HOST_IP"] == "127.0.0.1"
    assert "VLLM_HOST_IP" not in command_of(pair).environment
    one_each = settings_of(profile="demo", tensor_parallel=2, nodes=2, master_address="10.0.0.1")
    assert "OMP_NUM_THREADS" not in command_of(one_each, num_cores=8).environment
    assert "--headless" not in command_of(one_each).argv


def test_key_is_in_the_environment_alone_and_shown_nowhere() -> None:
    command = command_of(settings_of(host="0.0.0.0"), api_key=KEY)
    assert command.environment["VLLM_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(command.argv)
    assert "s3cret" not in render_command(command)
    assert "VLLM_API_KEY='***'" in render_command(command)
    assert "s3cret" not in repr(command)
    assert "s3cret" not in repr(KEY)
    assert value(command, "--middleware") == "glm53_exl3.serve.require_key.RequireKey"


def test_an_inherited_key_is_taken_away_where_none_is_wanted() -> None:
    assert command_of(settings_of(), inherited={"VLLM_API_KEY": "x"}).environment["VLLM_API_KEY"] == ""
    assert "VLLM_API_KEY" not in command_of(settings_of()).environment


def test_rendered_command_is_what_a_shell_runs(tmp_path: Path) -> None:
    report = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['DO_NOT_TRACK'], os.environ['X']]))"
    argv = (sys.executable, "-c", report, "--a", '{"b":"c d"}', "--e", "it's", "$HOME")
    command = ServerCommand(argv, {"DO_NOT_TRACK": "1", "X": "a b"}, "", "")
    shown = subprocess.run(["sh", "-c", render_command(command)], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == [list(argv[3:]), "1", "a b"]


def test_template_of_the_pack_is_passed_when_there_is_one(tmp_path: Path) -> None:
    assert find_chat_template(settings_of(pack=tmp_path)) is None
    template = tmp_path / "chat_template.jinja"
    template.write_text("{{ x }}")
    assert find_chat_template(settings_of(pack=tmp_path)) == template
    assert value(command_of(settings_of(), chat_template=template), "--chat-template") == str(template)
    other = tmp_path / "other.jinja"
    with pytest.raises(SettingError, match=re.escape(str(other))) as caught:
        find_chat_template(settings_of(pack=tmp_path, chat_template=other))
    assert caught.value.id == "chat-template"
    other.write_text("")
    assert find_chat_template(settings_of(pack=tmp_path, chat_template=other)) == other


def test_demo_command_is_the_demo_profile() -> None:
    command = demo_command(demo_settings(demo_pack(), 1234))
    assert command.argv[:5] == (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(demo_pack()))
    wanted = (
        ("--served-model-name", "glm53-exl3-demo"),
        ("--host", "127.0.0.1"),
        ("--port", "1234"),
        ("--max-model-len", "192"),
        ("--max-num-seqs", "16"),
        ("--kv-cache-memory-bytes", str(64 << 20)),
    )
    assert all(value(command, flag) == text for flag, text in wanted)
    assert "--enforce-eager" in command.argv
