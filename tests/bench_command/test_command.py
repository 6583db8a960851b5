"""`bench serve` and `bench compare` as a user runs them, against a server whose pace is known."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from glm53_exl3.bench.receipt import read_receipt, write_receipt
from glm53_exl3.cli.main import application
from glm53_exl3.errors import Glm53Error
from support.openai_server import Behaviour, openai_server
from support.receipts import changed, level, receipt

PROGRAM = Path(sys.executable).with_name("glm53-exl3")


def bench(*arguments: str | Path, key: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VLLM_API_KEY": key}
    return subprocess.run([PROGRAM, "bench", *arguments], capture_output=True, text=True, timeout=120, env=environment)


def serve(url: str, *arguments: str | Path, key: str = "") -> subprocess.CompletedProcess[str]:
    size = () if "--questions" in arguments else ("--prompt-tokens", "105")
    return bench("serve", "--url", url, *size, *arguments, key=key)


def test_a_measurement_finds_pace_counts_and_prompts(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    behaviour = Behaviour(first_seconds=0.05, spacing_seconds=0.01, events=6, tokens_per_event=2)
    with openai_server(behaviour) as url:
        done = serve(url, "--concurrency", "1,4", "--max-tokens", "6", "--out", out)
    assert done.returncode == 0, done.stderr
    found = read_receipt(out)
    assert [(each.concurrency, each.requests_per_run, len(each.samples)) for each in found.levels] == [
        (1, 1, 7),
        (4, 4, 28),
    ]
    samples = [sample for each in found.levels for sample in each.samples]
    assert {(each.outcome, each.prompt_tokens, each.completion_tokens) for each in samples} == {("answered", 105, 12)}
    assert min(sample.first_seconds or 0 for sample in samples) >= 0.05
    # Of some the first event is noticed late on a busy machine.
    assert statistics.median((sample.last_seconds or 0) - (sample.first_seconds or 0) for sample in samples) >= 0.04
    assert behaviour.most_at_once == 4
    # Two probes, then nine runs of each level, no prompt twice.
    prompts = [request["messages"][0]["content"] for request in behaviour.requests]
    assert len(set(prompts)) == len(prompts) == 2 + 9 * (1 + 4)
    assert {request["max_tokens"] for request in behaviour.requests[2:]} == {6}
    assert all(request["ignore_eos"] and request["temperature"] == 0 for request in behaviour.requests)
    assert len({request["cache_salt"] for request in behaviour.requests}) == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "server   pace, context 4096, vLLM 0.32.0"
    assert lines[-2].endswith("7 answered")
    assert lines[-1].endswith("28 answered")
    assert "4 clients, 4 requests: run 7 of 7" in done.stderr


def test_conditions_say_what_the_client_did(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    body = '{"chat_template_kwargs": {"enable_thinking": false}}'
    with openai_server(Behaviour()) as url:
        options = ["--runs", "1", "--warm-up", "0", "--seed", "5", "--extra-body", body, "--leave", "25"]
        done = serve(url, "--concurrency", "2", *options, "--requests", "3", "--out", out)
    assert done.returncode == 0, done.stderr
    conditions = read_receipt(out).conditions
    client = conditions["client"]
    expected = {"seed": 5, "runs": 1, "warm_up_runs": 0, "requests": 3, "leave_share": 0.25, "prompt_tokens": 105}
    assert {name: client[name] for name in expected} == expected
    assert client["extra_body"] == {"chat_template_kwargs": {"enable_thinking": False}}
    assert (client["prompts"], client["ignore_eos"]) == ("generated", True)
    assert conditions["server"]["flags"] is None
    assert conditions["machine"]["runs"] == "client"
    assert "flags and environment of the server are not known: what listens on port" in done.stderr


def test_questions_end_where_they_end_and_another_server_gets_no_keys_of_vllm(tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("What is suh?\nWhat is svh?\n")
    behaviour = Behaviour(version=None)
    with openai_server(behaviour) as url:
        done = serve(url, "--questions", questions, "--concurrency", "2", "--runs", "2", "--warm-up", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert [request["messages"][0]["content"] for request in behaviour.requests[:1]] == ["What is suh?"]
    asked = sorted(request["messages"][0]["content"] for request in behaviour.requests[1:])
    assert asked == ["What is suh?", "What is suh?", "What is svh?", "What is svh?"]
    assert not any("ignore_eos" in request or "cache_salt" in request for request in behaviour.requests)
    document = json.loads(done.stdout)
    assert document["levels"][0]["figures"]["outcomes"] == {"answered": 4}
    assert document["conditions"]["client"]["prompt_tokens"] is None


def test_failures_are_counted_by_kind_with_an_example(tmp_path: Path) -> None:
    with openai_server(Behaviour(fail_every=3, message="no memory")) as url:
        done = serve(url, "--concurrency", "1", "--runs", "7", "--warm-up", "0")
    assert done.returncode == 0, done.stderr
    # Two probes and seven requests, of which every third fails: the third, the sixth and the ninth.
    assert "4 answered, 3 FAILED" in done.stdout
    assert "1 clients: 3 x server-error: status 500: no memory" in done.stdout


def test_a_level_without_answers_fails_after_its_receipt_is_written(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    with openai_server(Behaviour(cut_after=1)) as url:
        questions = tmp_path / "questions.txt"
        questions.write_text("a\n")
        # The probe asks for one token, which this server still gives.
        done = serve(url, "--questions", questions, "--concurrency", "1", "--out", out)
    assert done.returncode == 1
    assert "error: all-requests-failed: " in done.stderr
    assert {sample.outcome for sample in read_receipt(out).levels[0].samples} == {"broken"}


@pytest.mark.parametrize(
    ("behaviour", "arguments", "error"),
    [
        (Behaviour(context=200), (), "context-exceeded"),
        (Behaviour(usage=False), (), "first-request-failed"),
        (Behaviour(status=500, message="dead"), (), "first-request-failed"),
        (Behaviour(key="k"), (), "api-key-refused"),
        (Behaviour(), ("--model", "other"), "model-not-served"),
        (Behaviour(), ("--prompt-tokens", "3"), "prompt-tokens"),
        (Behaviour(), ("--extra-body", "[]"), "extra-body"),
        (Behaviour(), ("--questions", "/nonexistent"), "questions-file"),
        (Behaviour(), ("--pack", "/nonexistent"), "file-missing"),
        (Behaviour(), ("--out", "/nonexistent/receipt.json"), "receipt-write"),
        (Behaviour(), ("--api-key-file", "/nonexistent"), "api-key-file"),
    ],
)
def test_a_users_mistake_is_named_before_anything_is_measured(
    behaviour: Behaviour, arguments: tuple[str, ...], error: str
) -> None:
    with openai_server(behaviour) as url:
        done = CliRunner().invoke(application(), ["bench", "serve", "--url", url, *arguments])
    assert isinstance(done.exception, Glm53Error)
    assert done.exception.id == error
    assert done.exception.hint
    assert "warm-up" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--concurrency", "1,x"),
        ("serve", "--concurrency", "0"),
        ("serve", "--concurrency", "1,1"),
        ("serve", "--concurrency", ""),
        ("serve", "--runs", "0"),
        ("serve", "--leave", "101"),
        ("serve", "--questions", "q.txt", "--prompt-tokens", "10"),
        ("compare", "a.json"),
        ("compare", "a.json", "b.json", "--threshold", "-1"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(application(), ["bench", *arguments])
    assert done.exit_code == 2
    assert "Usage: " in done.stderr


def test_the_key_reaches_the_server_and_no_output(tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    key = "s3cret-k3y-of-a-test"
    with openai_server(Behaviour(key=key)) as url:
        done = serve(url, "--concurrency", "1", "--runs", "1", "--out", out, key=key)
    assert done.returncode == 0, done.stderr
    assert key not in done.stdout + done.stderr + out.read_text()


def test_ctrl_c_does_not_wait_for_answers(tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("a\n")
    slow = Behaviour(first_seconds=0.1, spacing_seconds=30.0)
    with openai_server(slow) as url:
        command = [PROGRAM, "bench", "serve", "--url", url, "--questions", questions, "--concurrency", "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            while "warm-up" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(signal.SIGINT)
            _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "Traceback" not in errors


def compared(
    folder: Path, *arguments: str, first: object = None, second: object = None
) -> subprocess.CompletedProcess[str]:
    paths = folder / "a.json", folder / "b.json"
    for path, given in zip(paths, (first, second), strict=True):
        write_receipt(path, given or receipt())  # type: ignore[arg-type]
    return bench("compare", *paths, *arguments)


def test_equal_receipts_pass(tmp_path: Path) -> None:
    done = compared(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["clients", "figure", "first", "second", "ratio", "verdict"]
    assert [line.split()[-1] for line in lines[2:5]] == ["PASS"] * 3
    assert lines[5] == "equal answers: 7 of 7 with 1 clients"


def test_a_slower_one_fails_with_1(tmp_path: Path) -> None:
    done = compared(tmp_path, second=receipt(level(firsts=[0.6] * 7)))
    assert done.returncode == 1
    assert "FAIL: 20.0% worse" in done.stdout
    assert done.stderr == ""


def test_differing_conditions_are_refused_and_can_be_allowed(tmp_path: Path) -> None:
    other = receipt(conditions=changed(server__vllm_version="0.33.0"))
    done = compared(tmp_path, second=other)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: conditions-differ: ")
    assert "\n    server.vllm_version: 0.32.0 and 0.33.0\n" in done.stderr
    allowed = compared(tmp_path, "--allow", "server.vllm_version", second=other)
    assert allowed.returncode == 0
    assert allowed.stdout.startswith("allowed to differ: server.vllm_version: 0.32.0 and 0.33.0\n")


def test_json_has_verdicts_and_what_was_allowed(tmp_path: Path) -> None:
    other = receipt(level(2), conditions=changed(pack__commit=None))
    done = compared(tmp_path, "--json", "--allow", "pack.commit", first=receipt(level(1), level(2)), second=other)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["allowed"] == [{"key": "pack.commit", "first": "1" * 40, "second": "(not known)"}]
    assert [(each["concurrency"], each["verdict"]) for each in document["verdicts"]] == [
        (1, "NOT TESTED"),
        (2, "PASS"),
        (2, "PASS"),
        (2, "PASS"),
    ]
    assert document["equal_outputs"] == [{"concurrency": 2, "equal": 14, "compared": 14}]


def test_strict_takes_only_passes_and_nothing_compared_is_no_success(tmp_path: Path) -> None:
    both, one, other = receipt(level(1), level(2)), receipt(level(1)), receipt(level(4))
    assert compared(tmp_path, first=both, second=one).returncode == 0
    assert compared(tmp_path, "--strict", first=both, second=one).returncode == 1
    assert compared(tmp_path, first=one, second=other).returncode == 1


def test_a_file_that_is_no_receipt_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    done = bench("compare", path, path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: receipt-invalid: ")


def test_the_command_line_starts_without_what_only_measuring_needs() -> None:
    code = "import sys; import glm53_exl3.cli.main\n"
    code += "print([name for name in sys.modules if name.startswith(('glm53_exl3.bench', 'torch', 'vllm', 'openai'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
