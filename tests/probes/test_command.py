"""`glm53-exl3 preflight` as users run it, on this machine: no GPU, a CPU build of torch, vLLM 0.32.0."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from glm53_exl3.cli.entry import fast_parser
from glm53_exl3.cli.preflight import preflight
from glm53_exl3.probes import catalogue
from glm53_exl3.probes import preflight as probes
from glm53_exl3.probes.preflight import PreflightOptions, run_preflight, runtime_failures
from glm53_exl3.probes.result import CheckResult
from support.hosts import RecordedHost, healthy_record
from support.packs import PackRecipe, write_pack

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "preflight.schema.json").read_text(encoding="utf-8"))
ENTRY = "glm53_exl3.cli.entry"
#: Wanted on two idle cores; other work on the machine is allowed for by taking the best of several runs.
FAST_SECONDS = 0.3


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"from {ENTRY} import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500)


def validated(text: str) -> dict[str, Any]:
    report = json.loads(text)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    return report


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The one full run: checks by id, of the upstream runtime that this environment nearly is."""
    pack = write_pack(tmp_path_factory.mktemp("packs") / "small", PackRecipe())
    done = run("preflight", str(pack), "--json", "--runtime", "upstream")
    assert done.returncode == 1, done.stderr
    report = validated(done.stdout)
    assert report["failed"]
    assert not report["fast"]
    return {check["id"]: check for check in report["checks"]}


def test_full_run_fails_for_what_this_machine_lacks(full: dict[str, dict[str, str]]) -> None:
    lacking = {"gpu", "torch", "torch-cuda", "flashinfer", "moe-extension", "driver-library"}
    assert lacking <= {id for id, check in full.items() if check["status"] == "fail"}
    assert full["torch"]["measured"].startswith("2.13.0+cpu, CUDA none: a CPU build")
    assert full["torch-cuda"]["measured"] == "no GPU for torch: Torch not compiled with CUDA enabled"
    assert full["flashinfer"]["hint"].endswith("pip install --no-deps flashinfer-python==0.7.0.post1")
    assert full["moe-extension"]["measured"] == "glm53_exl3_exllamav3_ext is not installed"


def test_full_run_measures_what_this_machine_has(full: dict[str, dict[str, str]]) -> None:
    assert {
        id for id in ("vllm", "glm5next", "exl3-plugin", "exl3-rivals", "kpool-tail") if full[id]["status"] != "ok"
    } == set()
    assert full["vllm"]["measured"] == "0.32.0"
    assert full["exl3-plugin"]["measured"] == "glm53_exl3.engine.config"
    assert full["pack-inventory"]["status"] == "ok"
    assert full["pack-stamp"]["measured"] == "exl3"


def test_full_run_leaves_nothing_out(full: dict[str, dict[str, str]]) -> None:
    assert {check.id for check in (*catalogue.SLOW, *catalogue.PACK)} <= set(full)


def test_fast_report_is_valid_json_and_leaves_the_slow_checks_out() -> None:
    done = run("preflight", "--fast", "--json")
    report = validated(done.stdout)
    assert done.returncode == (1 if report["failed"] else 0)
    assert report["fast"]
    skipped = {check["id"] for check in report["checks"] if check["status"] == "skip"}
    assert {check.id for check in catalogue.SLOW} <= skipped
    assert done.stderr == ""


@pytest.mark.parametrize("fast", [["--fast"], []], ids=["fast", "full"])
def test_without_the_runtime_nothing_of_it_is_asked(fast: list[str]) -> None:
    report = json.loads(run("preflight", "--no-runtime", "--json", *fast).stdout)
    of_runtime = {check["id"]: check for check in report["checks"] if check["scope"] == "runtime"}
    asked = {name for name, check in of_runtime.items() if check["status"] != "skip"}
    # What the user has exported reaches a runtime wherever it is.
    assert asked
    assert all(name.startswith("env-") for name in asked)
    assert {"nvcc", "torch", "moe-extension", "kpool-tail"} <= of_runtime.keys()
    assert next(check for check in report["checks"] if check["id"] == "gpu")["status"] != "skip"
    assert "left out by --no-runtime" in of_runtime["nvcc"]["measured"]


def test_fast_imports_nothing_slow() -> None:
    code = (
        "import sys\nfrom glm53_exl3.cli.entry import fast_preflight\n"
        "assert fast_preflight(['preflight', '--fast']) in (0, 1)\n"
        "slow = {'torch', 'vllm', 'huggingface_hub', 'rich', 'typer', 'pydantic', 'http', 'ssl'}\n"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_fast_answers_in_time() -> None:
    best = 10.0
    for _ in range(10):
        # On a machine with more to do than cores the wall clock measures the others; what counts then is the work.
        busy = os.getloadavg()[0] > len(os.sched_getaffinity(0))
        before, started = os.times(), time.perf_counter()
        run("preflight", "--fast")
        wall, after = time.perf_counter() - started, os.times()
        work = after.children_user + after.children_system - before.children_user - before.children_system
        best = min(best, work if busy else wall)
        if best < FAST_SECONDS:
            break
    assert best < FAST_SECONDS


def test_console_script_starts_at_the_fast_entry() -> None:
    project = tomllib.loads((ROOT / "python" / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"]["glm53-exl3"] == f"{ENTRY}:main"


def test_last_line_says_what_was_not_checked() -> None:
    last = run("preflight", "--fast").stdout.splitlines()[-1]
    assert last.startswith("not checked: ")
    assert "kpool-tail (left out by --fast)" in last
    assert "pack-inventory (no --pack)" in last
    assert last.endswith("the quality of answers")


def test_port_in_use_is_named_by_number() -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = run("preflight", "--fast", "--port", str(port), "--json")
    check = next(check for check in json.loads(done.stdout)["checks"] if check["id"] == "port")
    assert (check["status"], check["measured"]) == ("fail", f"{port}: Address already in use")


@pytest.mark.parametrize(
    "arguments",
    [["--fast", "--nonsense"], ["--fast", "--port", "0"], ["--fast", "--runtime", "x"], ["a", "--pack", "b"]],
)
def test_usage_exits_2_as_everywhere(arguments: list[str]) -> None:
    done = run("preflight", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_help_of_the_fast_form_is_that_of_the_command() -> None:
    done = run("preflight", "--fast", "--help")
    assert done.returncode == 0
    assert "--strict" in done.stdout


def test_both_parsers_have_the_same_options() -> None:
    command = typer.main.get_command(_app())
    theirs = {name for parameter in command.params for name in parameter.opts if name.startswith("--")} - {"--help"}
    ours = {name for action in fast_parser()._actions for name in action.option_strings}
    assert ours == theirs


def _app() -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(preflight)
    return app


def test_exit_code_is_0_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from glm53_exl3.cli.entry import fast_preflight

    monkeypatch.setattr(probes, "LiveHost", lambda: RecordedHost(healthy_record()))
    monkeypatch.setattr("sys.executable", "/home/nvidia/venv/bin/python")
    assert fast_preflight(["preflight", "--fast"]) == 0
    assert fast_preflight(["preflight", "--fast", "--strict"]) == 0


def test_failures_before_a_download_are_of_machine_and_runtime_only(monkeypatch: pytest.MonkeyPatch) -> None:
    record = healthy_record()
    record["taken_ports"], record["free_bytes"] = {"8000": "Address already in use"}, 0
    record["runtime"]["registry"]["value"]["known"] = []
    record["machine"] = "x86_64"
    monkeypatch.setattr(probes, "LiveHost", lambda: RecordedHost(record))
    failures = runtime_failures("fork", python="/home/nvidia/venv/bin/python")
    assert all(isinstance(failure, CheckResult) for failure in failures)
    assert [failure.id for failure in failures] == ["arch", "glm5next"]


def test_report_of_a_recorded_host_is_valid() -> None:
    report = run_preflight(PreflightOptions(python="/home/nvidia/venv/bin/python"), RecordedHost(healthy_record()))
    assert not validated(json.dumps(report.to_json()))["failed"]


def test_every_check_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "preflight.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([a-z0-9-]+)` \|", text, re.MULTILINE))
    report = run_preflight(PreflightOptions(python="/home/nvidia/venv/bin/python"), RecordedHost(healthy_record()))
    assert documented == {result.id for result in report.results} | {"probe-timeout", "probe-crash"}
