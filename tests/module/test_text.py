"""Escapes of the module: what is written is read back unchanged."""

from __future__ import annotations

import json
import tomllib

import pytest

from support.nixos_module import NixError, evaluate, words
from support.programs import require_program

NASTY = [
    "plain",
    "two words",
    "100%",
    "%h/%%",
    "$HOME ${HOME} $$",
    'a "quoted" one',
    "it's",
    "back\\slash \\n \\x41",
    "tab\tnewline\nreturn\rbell\x07escape\x1b",
    "delete\x7f",
    "grüße, 世界",
    "; rm -rf / #",
    "",
    "-",
    "@%i",
]


@pytest.fixture(autouse=True)
def _needs_nix() -> None:
    require_program("nix-instantiate")


def nix_string(text: str) -> str:
    return f"(builtins.fromJSON {nix_literal(json.dumps(text))})"


def nix_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${")
    return f'"{escaped}"'


def test_arguments_come_through_systemd_unchanged() -> None:
    arguments = " ".join(nix_string(text) for text in NASTY)
    line = evaluate(f'(import ./nix/module/text.nix).execLine "/bin/x" [ {arguments} ]')
    assert "\n" not in line
    assert words(line) == ["/bin/x", *NASTY]


def test_every_percent_and_dollar_is_doubled() -> None:
    line = evaluate('(import ./nix/module/text.nix).execArgument "%h $HOME"')
    assert line == '"%%h $$HOME"'


@pytest.mark.parametrize("program", ["/bin/a b", "-/bin/x", "relative", "/bin/%h", '/bin/"x"', "/bin/$X"])
def test_a_program_that_systemd_would_read_otherwise_is_refused(program: str) -> None:
    with pytest.raises(NixError, match="has to be an absolute path of letters, digits"):
        evaluate(f"(import ./nix/module/text.nix).execLine {nix_literal(program)} [ ]")


def test_toml_is_read_back_unchanged() -> None:
    strings = " ".join(f"n{at} = {nix_string(text)};" for at, text in enumerate(NASTY))
    others = (
        'i = 1; n = -3; f = 0.25; big = 4294967296; t = true; no = false; l = [ "a" "b\\"" ]; e = [ ]; k = [ 1 2 ];'
    )
    text = evaluate(f"(import ./nix/module/text.nix).toToml {{ {strings} {others} }}")
    expected = {f"n{at}": text for at, text in enumerate(NASTY)}
    expected |= {"i": 1, "n": -3, "f": 0.25, "big": 4294967296, "t": True, "no": False}  # type: ignore[dict-item]
    expected |= {"l": ["a", 'b"'], "e": [], "k": [1, 2]}  # type: ignore[dict-item]
    assert tomllib.loads(text) == expected


@pytest.mark.parametrize("value", ["null", "{ a = 1; }", "[ null ]"])
def test_toml_of_more_than_one_level_is_refused(value: str) -> None:
    with pytest.raises(NixError, match="which a settings file of one level cannot hold"):
        evaluate(f"(import ./nix/module/text.nix).toToml {{ key = {value}; }}")


def test_credential_paths_keep_their_blanks_and_lose_no_percent() -> None:
    assert evaluate('(import ./nix/units.nix).credential "id" "/run/a b/100%"') == ["id:/run/a b/100%%"]
    assert evaluate('(import ./nix/units.nix).credential "id" null') == []
