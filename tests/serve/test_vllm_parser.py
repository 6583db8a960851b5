"""Every command is parsed by vLLM's own parser and means there what it should; lists of flags agree with it."""

from __future__ import annotations

from argparse import Namespace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import pytest

from glm53_exl3.pins import load_pins
from glm53_exl3.serve.flag_rules import FLAGS_OF_SETTINGS, SECRET_FLAGS, SPECULATION_FLAGS, UNWATCHED_FLAGS
from glm53_exl3.serve.profiles import PROFILES
from glm53_exl3.serve.runtime_flags import FORK_ONLY, PERHAPS_IN_FORK, UPSTREAM_ONLY
from glm53_exl3.serve.settings import Settings, setting_spec
from support.serving import DRAFT, PACK, combinations, command_of, name_of, settings_of


@pytest.fixture(scope="module")
def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def parse(parser: Any, settings: Settings) -> Namespace:
    argv = command_of(settings).argv
    words = list(argv[argv.index("serve") + 1 :])
    return parser.parse_args(words)


def test_the_parser_is_that_of_the_upstream_runtime() -> None:
    assert version("vllm").split("+")[0] == load_pins().runtimes["upstream"].vllm_version


@pytest.mark.parametrize("settings", combinations(), ids=name_of)
def test_command_is_parsed_into_the_intended_engine(parser: Any, settings: Settings) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    stated = parse(parser, settings)
    assert stated.model_tag == PACK
    engine = AsyncEngineArgs.from_cli_args(stated)
    assert engine.served_model_name == [settings.served_name]
    assert (engine.max_model_len, engine.max_num_seqs) == (settings.context, settings.sequences)
    assert engine.max_num_batched_tokens == settings.batched_tokens
    assert engine.kv_cache_dtype == settings.kv_dtype
    assert engine.enable_prefix_caching is settings.prefix_caching
    assert engine.enforce_eager is settings.enforce_eager
    assert engine.load_format == settings.load_format
    assert engine.kv_cache_memory_bytes
    assert engine.tensor_parallel_size == 1
    assert engine.reasoning_parser == settings.reasoning_parser
    glm = settings.profile != "demo"
    assert engine.quantization == ("exl3" if glm else None)
    assert engine.enable_flashinfer_autotune is (False if glm else None)
    assert engine.skip_mm_profiling is glm
    assert engine.limit_mm_per_prompt == ({"image": 4, "video": 1} if glm else {})


@pytest.mark.parametrize("settings", combinations(), ids=name_of)
def test_command_is_parsed_into_the_intended_server(parser: Any, settings: Settings) -> None:
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    stated = parse(parser, settings)
    validate_parsed_serve_args(stated)
    assert (stated.host, stated.port) == ("127.0.0.1", 8000)
    assert stated.enable_auto_tool_choice is bool(settings.tool_call_parser)
    assert (stated.tool_call_parser or "") == settings.tool_call_parser
    assert stated.api_key is None


@pytest.mark.parametrize("settings", combinations(), ids=name_of)
def test_speculation_has_the_fields_of_vllms_config(parser: Any, settings: Settings) -> None:
    from vllm.config import SpeculativeConfig
    from vllm.config.speculative import SpeculativeMethod
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    stated = parse(parser, settings)
    if settings.speculation == "none":
        assert stated.speculative_config is None
        assert stated.cudagraph_capture_sizes is None
        return
    config = stated.speculative_config
    assert set(config) <= set(SpeculativeConfig.__dataclass_fields__)
    assert config["method"] in {name for group in get_args(SpeculativeMethod) for name in names(group)}
    assert config["num_speculative_tokens"] + 1 in stated.cudagraph_capture_sizes
    if settings.speculation == "dflash2":
        assert config["model"] == DRAFT
        assert AttentionBackendEnum[config["attention_backend"]]


def names(hint: Any) -> list[str]:
    return [hint] if isinstance(hint, str) else [name for part in get_args(hint) for name in names(part)]


def test_parsers_of_the_profiles_exist() -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for profile in PROFILES.values():
        assert profile.tool_call_parser in {"", *ToolParserManager.list_registered()}
        assert profile.reasoning_parser in {"", *ReasoningParserManager.list_registered()}


def test_types_of_the_kv_cache_exist() -> None:
    from vllm.config.cache import CacheDType

    assert set(setting_spec("kv_dtype").choices) <= set(get_args(CacheDType))


def test_a_flag_that_does_not_exist_is_refused_by_this_parser(parser: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # Otherwise the tests above would prove nothing.
    with pytest.raises(SystemExit):
        parse(parser, settings_of(extra=["--no-such-flag", "1"]))
    assert "unrecognized arguments: --no-such-flag 1" in capsys.readouterr().err


def test_ranks_middleware_and_template_are_flags_of_vllm(parser: Any) -> None:
    settings = settings_of(profile="demo", tensor_parallel=2, expert_parallel=True, extra=["--seed", "7"])
    stated = parse(parser, settings)
    assert (stated.tensor_parallel_size, stated.enable_expert_parallel, stated.seed) == (2, True, 7)
    assert {"--middleware", "--chat-template"} <= options(parser)


@pytest.mark.parametrize("rank", [0, 1])
def test_machines_are_flags_of_vllm_and_a_second_one_has_no_api(parser: Any, rank: int) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    pair = {"nodes": 2, "node_rank": rank, "master_address": "169.254.10.1", "master_port": 29_600}
    stated = parse(parser, settings_of(tensor_parallel=2, memory_plan=False, **pair))
    validate_parsed_serve_args(stated)
    engine = AsyncEngineArgs.from_cli_args(stated)
    assert (engine.nnodes, engine.node_rank, engine.tensor_parallel_size) == (2, rank, 2)
    assert (engine.master_addr, engine.master_port) == ("169.254.10.1", 29_600)
    assert stated.headless is (rank == 1)


def test_forced_flag_wins_over_ours(parser: Any) -> None:
    stated = parse(parser, settings_of(extra=["--max-model-len", "77"], force=True))
    assert stated.max_model_len == 77


def options(parser: Any) -> set[str]:
    return set(parser._option_string_actions)


def test_flags_in_our_rules_are_flags_of_vllm(parser: Any) -> None:
    named = {*FLAGS_OF_SETTINGS, *SPECULATION_FLAGS, *SECRET_FLAGS, *UNWATCHED_FLAGS, "--attention-backend"}
    named |= {"--attention-config", "--compilation-config", "--kernel-config", "--moe-backend", "--config"}
    assert named <= options(parser)


def test_no_other_flag_of_vllm_is_taken_for_one_of_ours(parser: Any) -> None:
    # A flag that begins one of ours would be read as its abbreviation.
    watched = {*FLAGS_OF_SETTINGS, *SPECULATION_FLAGS, *SECRET_FLAGS, *UNWATCHED_FLAGS}
    others = {option.replace("--no-", "--") for option in options(parser) if option.startswith("--")} - watched
    assert [(other, flag) for other in others for flag in watched if flag.startswith(other)] == []


def test_lists_of_runtime_flags_agree_with_this_runtime(parser: Any) -> None:
    assert {*UPSTREAM_ONLY, *PERHAPS_IN_FORK} <= options(parser)
    assert not {*FORK_ONLY} & options(parser)


def test_no_command_has_a_flag_of_one_runtime_only() -> None:
    one_sided = {*FORK_ONLY, *UPSTREAM_ONLY, *PERHAPS_IN_FORK}
    for settings in combinations():
        assert not one_sided & set(command_of(settings).argv)


def test_variables_of_vllm_exist() -> None:
    from vllm import envs

    known = {*envs.environment_variables}
    for settings in combinations():
        ours = {name for name in command_of(settings).environment if name.startswith("VLLM_")}
        assert ours <= known
    assert "VLLM_API_KEY" in known
    assert "VLLM_ATTENTION_BACKEND" not in known
    assert {"VLLM_CPU_OMP_THREADS_BIND", "VLLM_HOST_IP"} <= known


def test_a_pack_on_disk_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert EngineArgs(model=str(tmp_path)).model == str(tmp_path)
