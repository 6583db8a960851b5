"""Units and settings files of the module: goldens, and what `serve` and `fetch` make of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.main import get_command

from glm53_exl3.cli.main import application
from glm53_exl3.serve.rules import broken_rules
from glm53_exl3.serve.setting_values import merge_settings
from glm53_exl3.serve.settings_file import read_settings_file
from support.nixos_module import CASES, GOLDENS, case, evaluate_module, files_of, goldens_of, words
from support.programs import require_program

#: The rules that the configuration of everything breaks on purpose; serve is forced there.
FORCED = {"full/glm53-exl3-full.toml": {"speculation-sequences"}}
SETTINGS_FILES = sorted(path.relative_to(GOLDENS) for path in GOLDENS.glob("*/*.toml"))


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-instantiate")


def commands(unit: str) -> list[list[str]]:
    return [words(line.partition("=")[2]) for line in unit.splitlines() if line.startswith("ExecStart=")]


def test_every_case_has_goldens_and_no_other_is_there() -> None:
    assert {path.name for path in GOLDENS.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_units_and_settings_files_are_the_goldens(name: str) -> None:
    assert files_of(name) == goldens_of(name)


@pytest.mark.parametrize("name", CASES)
def test_no_assertion_fails(name: str) -> None:
    system = "x86_64-linux" if name == "demo" else "aarch64-linux"
    assert evaluate_module(case(name), "failed", system=system) == []


@pytest.mark.skipif(not os.environ.get("GLM53_NIXPKGS_LIB"), reason="GLM53_NIXPKGS_LIB names no copy of nixpkgs' lib")
@pytest.mark.parametrize("name", CASES)
def test_nixpkgs_own_evaluator_makes_the_same_of_it(name: str) -> None:
    lib = f"import {os.environ['GLM53_NIXPKGS_LIB']}/lib"
    assert files_of(name, lib) == goldens_of(name)
    for attribute in ("firewall", "failed", "options"):
        assert evaluate_module(case(name), attribute, lib) == evaluate_module(case(name), attribute)


@pytest.mark.parametrize("file", SETTINGS_FILES, ids=str)
def test_serve_reads_the_settings_file_and_no_rule_is_broken(file: Path) -> None:
    settings = merge_settings({}, read_settings_file(GOLDENS / file))
    has_key = "LoadCredential=api-key" in (GOLDENS / file).with_suffix(".service").read_text()
    forced = {rule.id for rule in broken_rules(settings, {}, has_key=has_key)}
    assert forced == set()
    standing = broken_rules(merge_settings({"force": False}, read_settings_file(GOLDENS / file)), {}, has_key=has_key)
    assert {rule.id for rule in standing} == FORCED.get(str(file), set())


def test_nasty_names_reach_serve_unchanged() -> None:
    settings = merge_settings({}, read_settings_file(GOLDENS / "full" / "glm53-exl3-full.toml"))
    assert str(settings.pack) == '/home/ada/models/100% "K2": $HOME\\n'
    assert settings.served_name == 'glm "quoted"'
    assert settings.extra == ("--long-prefill-token-threshold", "1024")


def test_serve_and_fetch_take_the_arguments_of_their_units() -> None:
    seen = set()
    for name in CASES:
        for file, text in goldens_of(name).items():
            for _, subcommand, *arguments in commands(text) if file.endswith(".service") else ():
                seen.add(subcommand)
                command = get_command(application()).commands[subcommand]  # type: ignore[attr-defined]
                command.make_context(subcommand, list(arguments))
    assert seen == {"serve", "fetch"}


def test_a_pinned_name_and_a_commit_are_fetched_into_folders_that_serve_reads() -> None:
    goldens = goldens_of("fetched")
    fetched = commands(goldens["glm53-exl3-fetch-agent.service"])
    assert [command[2] for command in fetched] == [
        "K2",
        "incoai/GLM-5.3-Flash-DFlash2@dc77ff1c99eeb2df044ee3d4f0094eb033fee410",
    ]
    folders = [command[command.index("--dir") + 1] for command in fetched]
    settings = merge_settings({}, read_settings_file(GOLDENS / "fetched" / "glm53-exl3-agent.toml"))
    assert [str(settings.pack), str(settings.draft)] == folders


def test_server_waits_for_its_fetch_and_two_fetches_of_one_pack_do_not_meet() -> None:
    goldens = goldens_of("fetched")
    assert "Requires=glm53-exl3-fetch-agent.service" in goldens["glm53-exl3-agent.service"]
    assert re.search(r"^After=.*glm53-exl3-fetch-agent\.service", goldens["glm53-exl3-agent.service"], re.MULTILINE)
    assert re.search(
        r"^After=.*glm53-exl3-fetch-agent\.service", goldens["glm53-exl3-fetch-chat.service"], re.MULTILINE
    )
    assert not re.search(r"glm53-exl3-fetch-chat", goldens["glm53-exl3-fetch-agent.service"])


def test_secrets_are_credentials_and_stand_in_no_file() -> None:
    goldens = goldens_of("fetched")
    assert "LoadCredential=hub-token:/run/secrets/hub-token\n" in goldens["glm53-exl3-fetch-agent.service"]
    for name in CASES:
        for file, text in goldens_of(name).items():
            lines = [line for line in text.splitlines() if "/run/secrets" in line]
            assert all(line.startswith("LoadCredential=") for line in lines), (name, file)
            assert "VLLM_API_KEY" not in text
            assert "HF_TOKEN" not in text


def test_only_a_server_for_this_machine_is_kept_from_the_network() -> None:
    assert "IPAddressDeny=any" in goldens_of("minimal")["glm53-exl3-k2.service"]
    for name, unit in (("full", "full"), ("first-of-two", "pair"), ("second-of-two", "pair")):
        assert "IPAddress" not in goldens_of(name)[f"glm53-exl3-{unit}.service"]


def test_firewall_is_closed_until_it_is_asked_to_open() -> None:
    assert evaluate_module(case("minimal"), "firewall") == {"allowedTCPPorts": [], "interfaces": {}}
    assert evaluate_module(case("full"), "firewall") == {"allowedTCPPorts": [8100], "interfaces": {}}
    link = {"enp1s0f0np0": {"allowedTCPPortRanges": [{"from": 1024, "to": 65535}]}}
    assert evaluate_module(case("second-of-two"), "firewall") == {"allowedTCPPorts": [], "interfaces": link}


def test_without_enable_there_is_nothing() -> None:
    assert evaluate_module('{ services.glm53-exl3.instances.x.pack = "/x"; }', "units") == {}
