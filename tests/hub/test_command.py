"""`glm53-exl3 fetch` as a user runs it: where things go, what is printed, what is asked."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from glm53_exl3.cli import fetch as command
from glm53_exl3.errors import Glm53Error
from glm53_exl3.hub.names import parse_wanted
from glm53_exl3.probes import preflight
from glm53_exl3.probes.result import CheckResult
from support.fetching import (
    COMMIT_A,
    PROGRAM,
    SHARD_1,
    Ended,
    Recorder,
    environment,
    pack_files,
    run_command,
    run_process,
    snapshot,
)
from support.hub_server import LISTING, Hub

FILES = pack_files()
SIZE = sum(map(len, FILES.values()))
TOKEN = "hf_averysecrettoken"


def test_a_dry_run_tells_everything_and_writes_nothing(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES, licence="cc-by-nc-4.0")
    target = tmp_path / "pack"
    target.mkdir()
    (target / SHARD_1).write_bytes(FILES[SHARD_1])
    before = {path: path.stat() for path in (target, *target.iterdir())}
    result = run_command(hub, tmp_path, "me/pack", "--dir", target, "--dry-run")
    assert result.returncode == 0, result.stderr
    lines = [line.split(maxsplit=2) for line in result.stdout.splitlines()]
    assert ["commit", COMMIT_A] in lines
    assert ["licence", "cc-by-nc-4.0,", "has to be accepted"] in lines
    assert ["to", "check", "700,000 B in 1 files of the right size"] in lines
    assert ["to", "download", f"{SIZE - 700_000:,} B in 3 files"] in lines
    assert ["700,000", "B", f"{SHARD_1}  to check"] in lines
    assert ["27", "B", "config.json  to download"] in lines
    assert any(line.startswith("free disk    ") for line in result.stdout.splitlines())
    assert {path: path.stat() for path in (target, *target.iterdir())} == before
    assert [request.path for request in hub.requests] == [LISTING]


def test_a_pack_goes_below_the_packs_folder_or_below_models(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/Pack-K2", FILES)
    result = run_command(hub, tmp_path, "me/Pack-K2")
    assert result.stdout == f"{tmp_path / 'models' / 'Pack-K2'}\n"
    result = run_command(hub, tmp_path, "me/Pack-K2", GLM53_EXL3_PACKS=str(tmp_path / "packs"))
    assert result.stdout == f"{tmp_path / 'packs' / 'Pack-K2'}\n"
    assert (tmp_path / "packs" / "Pack-K2" / SHARD_1).read_bytes() == FILES[SHARD_1]


@pytest.mark.parametrize("way", ["environment", "file", "credential", "library"])
@pytest.mark.parametrize("outcome", ["fetched", "refused"])
def test_the_token_is_sent_and_never_written(hub: Hub, tmp_path: Path, way: str, outcome: str) -> None:
    hub.add("me/pack", FILES, token=TOKEN if outcome == "fetched" else "hf_other")
    arguments, changes = ["me/pack", "--dir", tmp_path / "pack"], {}
    if way == "environment":
        changes["HF_TOKEN"] = TOKEN
    elif way == "file":
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        arguments += ["--token-file", tmp_path / "token"]
        changes["HF_TOKEN"] = "hf_wrong"
    elif way == "credential":
        (tmp_path / "credentials").mkdir()
        (tmp_path / "credentials" / "hub-token").write_text(f"{TOKEN}\n")
        changes |= {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials"), "HF_TOKEN": "hf_wrong"}
    else:
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text(TOKEN)
    token_is_hidden(run_command(hub, tmp_path, *arguments, **changes), hub, tmp_path / "pack", outcome == "fetched")


def test_the_token_is_not_logged_when_the_library_logs_everything(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES, token=TOKEN)
    result = run_process(hub, tmp_path, "me/pack", "--dir", tmp_path / "pack", HF_TOKEN=TOKEN, HF_DEBUG="1")
    assert "curl" in result.stderr
    token_is_hidden(result, hub, tmp_path / "pack", True)


def token_is_hidden(result: Ended, hub: Hub, directory: Path, fetched: bool) -> None:
    """Assert that the token was sent, and neither printed nor written."""
    assert result.returncode == (0 if fetched else 1), result.stderr
    assert all(request.authorized for request in hub.asked(LISTING))
    assert TOKEN not in result.stdout + result.stderr
    written = snapshot(directory) if directory.exists() else {}
    assert (len(written) > 0) == fetched
    assert all(TOKEN.encode() not in contents for contents in written.values())


def test_a_token_file_that_is_none_is_not_quoted(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    (tmp_path / "token").write_text("secret one\nsecret two\n")
    result = run_command(hub, tmp_path, "me/pack", "--token-file", tmp_path / "token")
    assert (result.returncode, hub.requests) == (1, [])
    assert "error: token-file: the token file " in result.stderr
    assert "secret" not in result.stderr


def test_a_licence_with_restrictions_has_to_be_accepted(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES, licence="cc-by-nc-nd-4.0")
    arguments = ["me/pack", "--dir", tmp_path / "pack"]
    result = run_command(hub, tmp_path, *arguments)
    assert result.returncode == 1
    assert "error: licence-not-accepted: " in result.stderr
    assert "cc-by-nc-nd-4.0 forbids commercial use" in result.stderr
    assert f"glm53-exl3 fetch me/pack --dir {tmp_path / 'pack'} --accept-licence" in result.stderr
    assert not (tmp_path / "pack").exists()
    assert run_command(hub, tmp_path, *arguments, "--accept-licence").returncode == 0
    assert '"licence": "cc-by-nc-nd-4.0"' in (tmp_path / "pack" / "glm53-exl3-manifest.json").read_text()
    assert run_command(hub, tmp_path, *arguments).returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1)])
def test_on_a_terminal_the_licence_is_asked_for(hub: Hub, tmp_path: Path, answer: str, code: int) -> None:
    hub.add("me/pack", FILES, licence="other")
    ours, theirs = pty.openpty()
    arguments = [PROGRAM, "fetch", "me/pack", "--dir", tmp_path / "pack"]
    os.write(ours, answer.encode())
    process = subprocess.Popen(
        arguments, env=environment(hub, tmp_path, TERM="dumb"), stdin=theirs, stderr=theirs, stdout=subprocess.PIPE
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            # Linux reports the end of a terminal so.
            break
    os.close(ours)
    assert process.wait(20) == code
    assert b"the terms of other are not known to this program: read them. Accept? [y/N]" in shown
    assert (tmp_path / "pack" / SHARD_1).exists() == (code == 0)


def test_quiet_prints_the_folder_only(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    result = run_command(hub, tmp_path, "me/pack", "--dir", tmp_path / "pack", "--quiet")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{tmp_path / 'pack'}\n", "")


def test_offline_by_option_or_environment_says_so(hub: Hub, tmp_path: Path) -> None:
    hub.add("me/pack", FILES)
    arguments = ["me/pack", "--dir", tmp_path / "pack"]
    assert run_command(hub, tmp_path, *arguments).returncode == 0
    hub.forget()
    for result in (
        run_command(hub, tmp_path, *arguments, "--offline"),
        run_process(hub, tmp_path, *arguments, HF_HUB_OFFLINE="1"),
    ):
        assert result.returncode == 0, result.stderr
        assert f"commit {COMMIT_A} is complete; not compared with the Hub: " in result.stderr
    (tmp_path / "pack" / SHARD_1).unlink()
    result = run_command(hub, tmp_path, *arguments, "--offline")
    assert result.returncode == 1
    assert "error: pack-incomplete: 1 of 4 files" in result.stderr
    assert hub.requests == []


@pytest.mark.parametrize(
    ("arguments", "error_id"),
    [
        (["K3"], "pack-unknown"),
        (["k2@main", "--revision", "main"], "revision-twice"),
        (["me/pack", "--token-file", "/nowhere"], "token-file"),
        (["me/nothing"], "repository-unknown"),
        (["me/pack", "--revision", "v9"], "revision-unknown"),
    ],
)
def test_mistakes_exit_with_1_and_a_hint(hub: Hub, tmp_path: Path, arguments: list[str], error_id: str) -> None:
    hub.add("me/pack", FILES)
    result = run_command(hub, tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    assert f"error: {error_id}: " in result.stderr
    assert "\n\nhint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None; sys.argv = ['glm53-exl3', 'fetch', 'K2']\n"
    code += "from glm53_exl3.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"error: hub-missing: {sys.executable} has no huggingface_hub that can be used" in result.stderr
    assert f"hint: {sys.executable} -m pip install 'huggingface_hub>=1.3'" in result.stderr


def test_a_library_that_is_too_old_is_named(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.36.2")
    result = run_command(hub, tmp_path, "me/pack")
    assert result.returncode == 1
    assert "  expected: huggingface_hub 1.3 or newer\n  found: 0.36.2\n" in result.stderr


def gate(*, anyway: bool) -> command._Gate:
    return command._Gate(parse_wanted("me/pack", None, {}), Recorder(), "upstream", anyway=anyway, accepted=False)


@pytest.fixture
def failing_runtime(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def runtime_failures(runtime: str, *, with_runtime: bool) -> list[CheckResult]:
        calls.append(runtime if with_runtime else "machine")
        return [CheckResult("gpu", "GPU", "fail", "none found", "nvidia-smi", "host")]

    monkeypatch.setattr(preflight, "runtime_failures", runtime_failures)
    monkeypatch.setattr(sys, "argv", ["glm53-exl3", "fetch", "me/pack"])
    return calls


def test_a_runtime_that_is_not_ready_stops_a_large_download(
    failing_runtime: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Glm53Error) as caught:
        gate(anyway=False).before_download((1 << 30) + 1)
    assert caught.value.id == "runtime-not-ready"
    assert caught.value.hint.endswith("glm53-exl3 fetch me/pack --anyway")
    shown = capsys.readouterr().err
    assert "FAIL  GPU: none found" in shown
    assert "nvidia-smi" in shown


def test_anyway_shows_what_is_not_ready_once_and_goes_on(
    failing_runtime: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = gate(anyway=True)
    asked.before_download(91 << 30)
    asked.before_download(92 << 30)
    assert capsys.readouterr().err.count("FAIL  GPU: none found") == 1
    assert failing_runtime == ["upstream"]


def test_without_the_runtime_only_the_machine_is_asked(failing_runtime: list[str]) -> None:
    asked = command._Gate(
        parse_wanted("me/pack", None, {}), Recorder(), "upstream", anyway=False, accepted=False, with_runtime=False
    )
    with pytest.raises(Glm53Error, match="1 check of the machine failed"):
        asked.before_download(91 << 30)
    assert failing_runtime == ["machine"]


def test_a_large_pack_is_not_begun_on_a_runtime_that_is_not_ready(
    hub: Hub, tmp_path: Path, failing_runtime: list[str]
) -> None:
    hub.add("me/pack", FILES, claimed={SHARD_1: (1 << 30) + 1})
    arguments = ["me/pack", "--dir", tmp_path / "pack"]
    shown = run_command(hub, tmp_path, *arguments, "--dry-run")
    assert (shown.returncode, "FAIL  GPU: none found" in shown.stderr) == (0, True)
    result = run_command(hub, tmp_path, *arguments)
    assert result.returncode == 1
    assert "error: runtime-not-ready: 1 check of the runtime failed" in result.stderr
    assert {request.path for request in hub.requests} == {LISTING}
    assert not (tmp_path / "pack").exists()


def test_a_small_download_does_not_ask_the_runtime(failing_runtime: list[str]) -> None:
    gate(anyway=False).before_download(1 << 30)
    assert failing_runtime == []


def test_the_runtime_is_asked_as_it_wants_to_be() -> None:
    parameters = inspect.signature(preflight.runtime_failures).parameters.values()
    first, *others = parameters
    assert first.name == "runtime"
    assert all(parameter.default is not parameter.empty for parameter in others)
