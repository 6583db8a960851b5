"""What `serve` refuses, why, and what can be forced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.errors import SettingError
from glm53_exl3.serve.extra_flags import extra_flags, value_of
from glm53_exl3.serve.flag_rules import FLAGS_OF_SETTINGS
from glm53_exl3.serve.rules import RULES, broken_rules, check_rules
from glm53_exl3.serve.setting_rules import is_loopback
from support.serving import DRAFT, PACK, combinations, command_of, name_of, settings_of

#: For each rule: settings that break it, and an environment.
BROKEN: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = {
    "flag-secret": [({"extra": ["--api-key", "s3cret"]}, {}), ({"extra": ["--hf_token=s3cret"]}, {})],
    "speculation-twice": [
        ({"extra": ["--speculative-config", '{"method":"dflash"}']}, {}),
        ({"extra": ["-sc.method", "mtp"]}, {}),
        ({"extra": ["--speculative_config.attention_backend=FLASH_ATTN"]}, {}),
        ({"extra": ["--spec-method", "mtp"]}, {}),
        ({"extra": ["--specul", "{}"]}, {}),
        ({"speculation": "none", "extra": ["--spec-tokens", "3"]}, {}),
    ],
    "attention-backend": [
        ({}, {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}),
        ({"extra": ["--attention-backend", "TRITON_ATTN"]}, {}),
        ({"extra": ["--attention-config.backend", "TRITON_ATTN"]}, {}),
        ({"extra": ["-ac", '{"backend": "TRITON_ATTN"}']}, {}),
    ],
    "moe-backend": [
        ({"extra": ["--moe-backend", "marlin"]}, {}),
        ({"extra": ["--moe-backend=MARLIN"]}, {}),
        ({"extra": ["--kernel-config.moe_backend", "marlin"]}, {}),
        ({"extra": ["--kernel-config", '{"moe_backend":"marlin"}']}, {}),
    ],
    "flag-address": [
        ({"extra": ["--port", "1"]}, {}),
        ({"extra": ["--host=0.0.0.0"]}, {}),
        ({"extra": ["--model", "/other"]}, {}),
        ({"extra": ["--served_model_name", "x"]}, {}),
    ],
    "flag-repeated": [
        ({"extra": ["--seed", "1", "--dtype", "auto", "--kv-cache-dtype", "auto"]}, {}),
        ({"extra": ["--max_model_len=1"]}, {}),
        ({"extra": ["--max-model", "1"]}, {}),
        ({"extra": ["--no-enable-prefix-caching"]}, {}),
        ({"extra": ["-tp", "2"]}, {}),
        ({"extra": ["-n", "2"]}, {}),
        ({"extra": ["-r=1"]}, {}),
        ({"extra": ["--master-addr", "10.0.0.1"]}, {}),
        ({"extra": ["-q=exl3"]}, {}),
        ({"extra": ["--gpu-memory-utilization", "0.9"]}, {}),
        ({"extra": ["--no-skip-mm-profiling"]}, {}),
    ],
    "flag-hidden": [({"extra": ["--config", "x.yaml"]}, {})],
    "flag-runtime": [
        ({"extra": ["--kda-decode-backend", "x"]}, {}),
        ({"runtime": "upstream", "extra": ["--no-enable-bf16x3-router-gemm"]}, {}),
    ],
    "flag-unwatched": [({"extra": [flag, "x"]}, {}) for flag in ("--uds", "--headless", "--grpc", "--ssl-keyfile")],
    "speculation-tokens": [
        ({"speculation": "none", "speculative_tokens": 2}, {}),
        ({"speculation": "mtp", "speculative_tokens": 0}, {}),
    ],
    "speculation-sequences": [({"sequences": 2}, {})],
    "draft-missing": [({"speculation": "dflash2"}, {})],
    "draft-unused": [({"draft": DRAFT}, {}), ({"draft": DRAFT, "speculation": "none"}, {})],
    "draft-is-pack": [({"speculation": "dflash2", "draft": f"{PACK}/."}, {})],
    "draft-runtime": [({"speculation": "dflash2", "draft": DRAFT, "runtime": "upstream"}, {})],
    "capture-sizes": [
        ({"capture_sizes": [1, 2, 4]}, {}),
        ({"speculative_tokens": 4, "capture_sizes": [3, 4, 8]}, {}),
        ({"extra": ["--compilation-config", '{"cudagraph_capture_sizes":[1,2,4]}']}, {}),
        ({"extra": ["-cc.cudagraph_capture_sizes+", "1,2,4"]}, {}),
        ({"force": True, "extra": ["--cudagraph-capture-sizes", "1", "2", "4"]}, {}),
    ],
    "open-without-key": [({"host": host}, {}) for host in ("0.0.0.0", "::", "192.168.1.20", "spark.local")],
    "node-rank": [
        ({"node_rank": 1}, {}),
        ({"nodes": 2, "node_rank": 2, "tensor_parallel": 2, "memory_plan": False, "master_address": "10.0.0.1"}, {}),
    ],
    "master-address": [
        ({"nodes": 2, "tensor_parallel": 2, "memory_plan": False}, {}),
        ({"master_address": "10.0.0.1"}, {}),
    ],
    "node-shares": [
        ({"nodes": 2, "tensor_parallel": ranks, "memory_plan": False, "master_address": "10.0.0.1"}, {})
        for ranks in (1, 3)
    ],
    "plan-ranks": [({"tensor_parallel": 2}, {})],
}
FORCEABLE = {rule.id for rule in RULES if rule.can_be_forced}


def broken(flags: dict[str, Any], environment: dict[str, str] | None = None, has_key: bool = False) -> list[str]:
    return [error.id for error in broken_rules(settings_of(**flags), environment or {}, has_key=has_key)]


def test_every_rule_has_cases_here() -> None:
    assert list(BROKEN) == [rule.id for rule in RULES]


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in BROKEN.items() for case in cases])
def test_a_broken_rule_is_refused_with_reason_and_remedy(
    rule: str, case: tuple[dict[str, Any], dict[str, str]]
) -> None:
    flags, environment = case
    assert broken(flags, environment) == [rule]
    with pytest.raises(SettingError) as caught:
        check_rules(settings_of(**flags), environment, has_key=False)
    reason = next(each.reason for each in RULES if each.id == rule)
    assert caught.value.what.endswith(f": {reason}")
    assert caught.value.expected
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)
    assert ("--force" in caught.value.hint) == (rule in FORCEABLE or rule == "speculation-twice")


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, cases in BROKEN.items() for case in cases])
def test_force_lifts_what_can_be_forced_and_nothing_else(
    rule: str, case: tuple[dict[str, Any], dict[str, str]]
) -> None:
    flags, environment = case
    own_speculation = rule == "speculation-twice" and flags.get("speculation") == "none"
    assert broken(flags | {"force": True}, environment) == ([] if rule in FORCEABLE or own_speculation else [rule])


def test_which_rules_can_be_forced() -> None:
    assert {
        "attention-backend",
        "flag-repeated",
        "flag-hidden",
        "flag-runtime",
        "speculation-sequences",
        "draft-runtime",
    } == FORCEABLE


@pytest.mark.parametrize("settings", combinations(), ids=name_of)
def test_profiles_break_no_rule(settings: Any) -> None:
    assert broken_rules(settings, {"PATH": "/bin"}, has_key=False) == []


@pytest.mark.parametrize(
    "flags",
    [
        {"extra": ["--long-prefill-token-threshold", "1024", "--seed=1"]},
        {"extra": ["--attention-config.flash_attn_version", "3"]},
        {"extra": ["--moe-backend", "triton"]},
        {"extra": ["--model-impl", "vllm", "--config-format", "hf"]},
        {"memory_plan": False, "extra": ["--gpu-memory-utilization", "0.9"]},
        {"profile": "demo", "extra": ["--quantization", "exl3", "--skip-mm-profiling"]},
        {"enforce_eager": True, "capture_sizes": [1]},
        {"speculation": "none", "extra": ["--compilation-config", '{"cudagraph_capture_sizes":[1]}']},
        {"speculation": "none", "capture_sizes": [1]},
        {"extra": ["--compilation-config", "not JSON", "--kernel-config"]},
        {"tensor_parallel": 2, "memory_plan": False},
        {"nodes": 2, "tensor_parallel": 4, "memory_plan": False, "master_address": "10.0.0.1"},
        # It has no API that could be open.
        {"nodes": 2, "node_rank": 1, "host": "0.0.0.0"}
        | {"tensor_parallel": 2, "memory_plan": False, "master_address": "10.0.0.1"},
        {"host": "0.0.0.0", "allow_open": True},
        {"host": "127.8.8.8"},
        {"runtime": "upstream", "extra": ["--kda-decode-backend", "x"]},
    ],
)
def test_what_breaks_no_rule(flags: dict[str, Any]) -> None:
    assert broken(flags) == []


def test_a_key_opens_every_host() -> None:
    assert broken({"host": "0.0.0.0"}, has_key=True) == []


def test_all_broken_rules_are_listed_the_secret_first() -> None:
    flags = {"sequences": 2, "host": "0.0.0.0", "extra": ["--load-format", "x", "--api-key", "x"]}
    assert broken(flags) == ["flag-secret", "flag-repeated", "speculation-sequences", "open-without-key"]


def test_repeated_flag_names_the_setting_to_use() -> None:
    with pytest.raises(SettingError) as caught:
        check_rules(settings_of(extra=["--max-model-len", "1"]), {}, has_key=False)
    assert caught.value.expected == "--context"
    assert "--max-model-len" in caught.value.what


def test_capture_sizes_hint_holds_the_missing_size() -> None:
    with pytest.raises(SettingError) as caught:
        check_rules(settings_of(speculative_tokens=6, capture_sizes=[1, 2]), {}, has_key=False)
    assert "sizes with 7" in caught.value.expected
    assert " 7 " in caught.value.hint


def test_every_flag_that_is_passed_has_a_setting_to_use_instead() -> None:
    passed: set[str] = set()
    ranks = {"tensor_parallel": 2, "expert_parallel": True, "memory_plan": False}
    pair = {"nodes": 2, "node_rank": 1, "master_address": "10.0.0.1"}
    for settings in [*combinations(), settings_of(**ranks), settings_of(**ranks, **pair)]:
        argv = command_of(settings, chat_template=Path("/t")).argv
        passed |= {argument.replace("--no-", "--") for argument in argv if argument.startswith("--")}
    # A rule of its own is about --headless.
    assert passed - {"--speculative-config", "--headless"} <= set(FLAGS_OF_SETTINGS)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_extra_flags_are_read_as_vllm_reads_them() -> None:
    flags = extra_flags(["stray", "--a_b=1=2", "x", "-cc.mode", "3", "--no-c", "-tp", "2", "--d.e-f+", "1,2", "-1"])
    assert [(flag.name, flag.key, flag.values, flag.written) for flag in flags] == [
        ("--a-b", "", ("1=2", "x"), "--a_b"),
        ("--compilation-config", "mode", ("3",), "-cc.mode"),
        ("--c", "", (), "--no-c"),
        ("--tensor-parallel-size", "", ("2",), "-tp"),
        ("--d", "e_f", ("1,2", "-1"), "--d.e-f+"),
    ]


def test_the_last_value_of_a_key_counts() -> None:
    flags = extra_flags(["-cc", '{"mode": 1, "x": 2}', "--compilation-config.mode", "3"])
    assert value_of(flags, "--compilation-config", "mode") == 3
    assert value_of(flags, "--compilation-config", "x") == 2
    assert value_of(flags, "--compilation-config", "y") is None
