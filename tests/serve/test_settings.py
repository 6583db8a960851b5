"""Settings: declared once, checked one by one, merged in one order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as property_settings
from hypothesis import strategies as st

from glm53_exl3.errors import ExitCode, SettingError
from glm53_exl3.serve import boot
from glm53_exl3.serve.profiles import PROFILES
from glm53_exl3.serve.setting_values import merge_settings, nearest_key
from glm53_exl3.serve.settings import (
    KEYS,
    PHASE_OF_LIMIT,
    Settings,
    key_of,
    phase_limits,
    setting_spec,
    settings_schema,
)
from glm53_exl3.serve.settings_file import read_settings_file

PACK = {"pack": "/p"}
KINDS = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}
LISTS = {str: "strings", int: "integers"}


def is_optional(hint: Any) -> bool:
    # `None | Literal[...]` is a Union of typing, `None | int` one of types.
    return get_origin(hint) in {Union, UnionType}


def given_type(hint: Any) -> Any:
    """What a hint is besides None."""
    return next(part for part in get_args(hint) if part is not type(None)) if is_optional(hint) else hint


def kind_of(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "string"
    if is_optional(hint):
        return kind_of(given_type(hint))
    if get_origin(hint) is tuple:
        return LISTS[get_args(hint)[0]]
    return KINDS[hint]


def refusal(file: dict[str, Any], flags: dict[str, Any] | None = None) -> SettingError:
    with pytest.raises(SettingError) as caught:
        merge_settings(PACK | (flags or {}), file)
    return caught.value


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text)
    return path


def test_every_field_is_declared_with_its_type_its_choices_and_a_sentence() -> None:
    hints = get_type_hints(Settings)
    for spec in settings_schema():
        hint = given_type(hints[KEYS[spec.key]])
        assert spec.kind == kind_of(hint), spec.key
        if get_origin(hint) is Literal or spec.key in {"profile", "runtime", "speculation"}:
            assert set(spec.choices) == set(get_args(hint)), spec.key
        assert re.fullmatch(r"\S.*\.", spec.help), spec.key


def test_keys_are_kebab_case_and_those_of_the_schema() -> None:
    assert [spec.key for spec in settings_schema()] == list(KEYS)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", key) for key in KEYS)
    assert KEYS["kv-cache-bytes"] == "kv_cache_bytes"


def test_schema_is_plain_data() -> None:
    specs = [asdict(spec) for spec in settings_schema()]
    assert json.loads(json.dumps(specs)) == [{**spec, "choices": list(spec["choices"])} for spec in specs]


def test_defaults_are_within_their_own_bounds() -> None:
    for profile in PROFILES:
        settings = merge_settings(PACK | {"profile": profile}, {})
        stated = {spec.key: getattr(settings, KEYS[spec.key]) for spec in settings_schema()}
        again = merge_settings({key: value for key, value in stated.items() if value is not None}, {})
        assert again == settings


def test_schema_states_the_defaults_that_merging_gives() -> None:
    for profile in PROFILES:
        settings = merge_settings(PACK | {"profile": profile}, {})
        for spec in settings_schema():
            value = getattr(settings, KEYS[spec.key])
            if spec.by_profile:
                assert value == spec.by_profile[profile]
            elif not spec.by_default and spec.key != "profile":
                assert value == (tuple(spec.default) if isinstance(spec.default, list) else spec.default), spec.key


def test_flags_win_over_file_over_profile_over_defaults() -> None:
    file = {"profile": "long", "context": 4096, "port": 9000, "batched-tokens": 1024}
    settings = merge_settings(PACK | {"context": 2048, "port": None}, file)
    assert (settings.profile, settings.context, settings.port) == ("long", 2048, 9000)
    assert settings.batched_tokens == 1024
    assert settings.watchdog == PROFILES["long"].watchdog
    assert settings.host == "127.0.0.1"


def test_profile_of_a_flag_wins_over_that_of_the_file() -> None:
    settings = merge_settings(PACK | {"profile": "max"}, {"profile": "long", "kv-dtype": "fp8_ds_mla"})
    assert (settings.context, settings.kv_dtype) == (262_144, "fp8_ds_mla")


@pytest.mark.parametrize(("speculation", "tokens"), [("none", 0), ("mtp", 2), ("dflash2", 3)])
def test_tokens_follow_the_speculation(speculation: str, tokens: int) -> None:
    assert merge_settings(PACK | {"speculation": speculation}, {}).speculative_tokens == tokens


def test_what_the_file_says_about_another_speculation_is_left_out() -> None:
    file = {"speculation": "dflash2", "draft": "/d", "speculative-tokens": 5, "port": 9000}
    settings = merge_settings(PACK | {"speculation": "none"}, file)
    assert (settings.draft, settings.speculative_tokens, settings.port) == (None, 0, 9000)
    same = merge_settings(PACK | {"speculation": "dflash2"}, file)
    assert (same.draft, same.speculative_tokens) == (Path("/d"), 5)
    assert merge_settings(PACK | {"draft": "/e"}, file).draft == Path("/e")


def test_pack_has_to_be_given() -> None:
    with pytest.raises(SettingError, match="no pack") as caught:
        merge_settings({}, {})
    assert caught.value.id == "setting-missing"
    assert caught.value.exit_code is ExitCode.FIXABLE
    assert merge_settings({}, {"pack": "/from/file"}).pack == Path("/from/file")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("kv_dtype", "kv-dtype"), ("contxt", "context"), ("Port", "port"), ("api-key", "api-key-file"), ("qqq", None)],
)
def test_unknown_key_is_refused_with_the_nearest(key: str, nearest: str | None) -> None:
    assert nearest_key(key) == nearest
    error = refusal({key: "s3cret"})
    assert error.id == "setting-unknown"
    assert repr(key) in error.what
    assert "s3cret" not in str(error)
    assert (f"write {nearest}" if nearest else "--help") in error.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("context", "8192"),
        ("context", 8192.0),
        ("context", True),
        ("floor", "8"),
        ("floor", float("nan")),
        ("floor", float("inf")),
        ("canary", 1),
        ("host", 127),
        ("host", "a\0b"),
        ("draft", ""),
        ("draft", ["/d"]),
        ("extra", "--seed 1"),
        ("extra", ["--seed", 1]),
        ("capture-sizes", 4),
        ("port", {"number": 1}),
    ],
)
def test_wrong_type_is_named_with_key_expectation_and_value(key: str, value: Any) -> None:
    error = refusal({key: value})
    assert error.id == "setting-type"
    assert key in error.what
    assert error.expected
    assert type(value).__name__ in error.found or "int" in error.found


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("port", 0, "1 to 65535"),
        ("port", 65_536, "1 to 65535"),
        ("context", -1, "1 to 1048576 tokens"),
        ("floor", -0.5, "0 to 1024 GiB"),
        ("kv-cache-bytes", 3, "at least 1048576 bytes"),
        ("capture-sizes", [1, 0], "1 to 8192"),
        ("host", "", "a string that is not empty"),
    ],
)
def test_what_is_out_of_range_is_named_with_the_range(key: str, value: Any, expected: str) -> None:
    error = refusal({key: value})
    assert (error.id, error.expected) == ("setting-range", expected)
    assert key in error.what


def test_wrong_choice_is_refused_with_all_choices_and_the_nearest() -> None:
    error = refusal({"speculation": "dflash"})
    assert (error.id, error.expected, error.hint) == ("setting-choice", "none, mtp, dflash2", "write dflash2")


def test_flag_and_file_are_told_apart() -> None:
    assert "port of the settings file" in refusal({"port": 0}).what
    assert "--port" in refusal({}, {"port": 0}).what


def test_whole_numbers_are_numbers() -> None:
    floor = merge_settings(PACK, {"floor": 12}).floor
    assert (floor, type(floor)) == (12.0, float)


def test_paths_of_a_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    text = 'pack = "packs/K2"\ndraft = "/drafts/x"\nchat-template = "~/t.jinja"\nserved-name = "packs/K2"\n'
    values = read_settings_file(write(tmp_path, text))
    assert values["pack"] == str(tmp_path / "packs/K2")
    assert values["draft"] == "/drafts/x"
    assert values["chat-template"] == "/home/somebody/t.jinja"
    assert values["served-name"] == "packs/K2"


def test_file_has_every_type(tmp_path: Path) -> None:
    text = 'pack = "/p"\nfloor = 4.5\ncapture-sizes = [1, 3]\ncanary = false\nextra = ["--seed", "1"]\n'
    settings = merge_settings({}, read_settings_file(write(tmp_path, text)))
    assert (settings.floor, settings.capture_sizes, settings.canary) == (4.5, (1, 3), False)
    assert settings.extra == ("--seed", "1")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("context = 1\nport 8000\n", "line 2, column 6"),
        ("port = 1\nport = 2\n", "line 2, column 9"),
        ('host = "x', "line 1, column 10"),
        ("api-key = s3cret\n", "line 1, column 11"),
    ],
)
def test_syntax_error_names_line_and_column_and_not_what_stands_there(tmp_path: Path, text: str, place: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingError) as caught:
        read_settings_file(path)
    assert caught.value.id == "settings-syntax"
    assert caught.value.what.startswith(f"{path}, {place}: ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("make", ["missing", "folder", "binary", "home"])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, make: str) -> None:
    path = tmp_path / "serve.toml"
    if make == "folder":
        path.mkdir()
    elif make == "binary":
        path.write_bytes(b"host = '\xff'")
    elif make == "home":
        path.write_text('pack = "~nobody-of-this-name/p"')
    with pytest.raises(SettingError) as caught:
        read_settings_file(path)
    assert caught.value.id == "settings-file"
    assert str(path) in caught.value.what


def test_limits_cover_the_phases_of_a_start() -> None:
    settings = merge_settings(PACK | {"limit-weights": 42}, {})
    limits = {phase.name: phase.limit_seconds for phase in boot.PHASES} | {"loading weights": 42}
    assert phase_limits(settings) == limits
    assert set(PHASE_OF_LIMIT) <= {each.name for each in fields(Settings)}
    assert setting_spec("limit_weights").unit == "seconds"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a1-_/~\0\u00e9", max_size=4) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("k"), inner),
    max_leaves=4,
)


def outcome(make: Callable[[], Any]) -> Any:
    """What comes of a call: its value or its refusal; anything else is raised."""
    try:
        return make()
    except SettingError as error:
        return error


@property_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*KEYS, "nonsense"]), VALUES, max_size=4))
def test_no_value_of_a_file_gives_anything_but_settings_or_a_refusal(file: dict[str, Any]) -> None:
    result = outcome(lambda: merge_settings(PACK, file))
    if isinstance(result, Settings):
        stated = {key_of(name): value for name, value in vars(result).items() if value is not None}
        assert merge_settings(stated, {}) == result
    else:
        assert result.id.startswith("setting-")
        assert result.hint


@property_settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_give_anything_but_values_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    result = outcome(lambda: read_settings_file(path))
    assert isinstance(result, dict) or result.id in {"settings-file", "settings-syntax"}
