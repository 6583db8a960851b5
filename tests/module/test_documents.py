"""What is generated from the settings and the options is up to date, and nothing is left out."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from glm53_exl3.serve.setting_rules import is_loopback
from glm53_exl3.serve.settings import KEYS
from support.nixos_module import ROOT, evaluate, evaluate_module
from support.programs import require_program

#: Settings for which an instance has an option of its own.
OWNED = {"pack": "pack", "draft": "draft", "runtime": "runtime", "api-key-file": "apiKeyFile"}
INSTANCE = "services.glm53-exl3.instances.<name>"


def printed(tool: str) -> str:
    command = [sys.executable, str(ROOT / "tools" / "options" / tool), "--stdout"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_settings_json_is_what_the_code_says() -> None:
    assert printed("settings.py") == (ROOT / "nix" / "settings.json").read_text(encoding="utf-8")


def test_options_document_is_what_the_module_says() -> None:
    require_program("nix-instantiate")
    assert printed("render.py") == (ROOT / "docs" / "options.md").read_text(encoding="utf-8")


def test_every_setting_is_an_option() -> None:
    require_program("nix-instantiate")
    names = {option["name"] for option in evaluate_module("{ }", "options")}
    assert {f"{INSTANCE}.settings.{key}" for key in KEYS if key not in OWNED} <= names
    assert {f"{INSTANCE}.{name}" for name in OWNED.values()} <= names
    assert not {f"{INSTANCE}.settings.{key}" for key in OWNED} & names


def test_every_option_is_described_by_a_sentence() -> None:
    require_program("nix-instantiate")
    for option in evaluate_module("{ }", "options"):
        assert option["description"].endswith("."), option["name"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "[::1]",
        "localhost",
        "LOCALHOST",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "localhost.a",
        "",
    ],
)
def test_module_and_serve_agree_on_what_is_this_machine(host: str) -> None:
    require_program("nix-instantiate")
    # The module is only stricter: it knows fewer names of this machine.
    assert evaluate(f"(import ./nix/units.nix).isLoopback {json.dumps(host)}") is is_loopback(host)


def test_examples_of_the_document_evaluate_and_fail_no_assertion() -> None:
    require_program("nix-instantiate")
    text = (ROOT / "docs" / "nixos.md").read_text(encoding="utf-8")
    examples = re.findall(r"```nix\n(.*?)```", text, re.DOTALL)
    modules = [example for example in examples if "services.glm53-exl3" in example]
    assert len(modules) >= 4
    for module in modules:
        assert evaluate_module(f"({module})", "failed") == [], module
        assert evaluate_module(f"({module})", "units") != {}, module
