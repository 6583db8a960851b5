"""Phases and errors in vLLM's log."""

import pytest

from glm53_exl3.errors import PackError
from glm53_exl3.serve.log_lines import PHASES, find_error, phase_index

PREFIX = "(EngineCore pid=77) ERROR 11-30 12:00:00 [core.py:1002] "


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("INFO 11-30 [core.py:99] Initializing a V1 LLM engine (v0.32.0) with config: ...", "starting the engine"),
        ("INFO 11-30 [cpu_model_runner.py:1] Starting to load model /pack...", "loading weights"),
        ("INFO [default_loader.py:1] Loading weights took 1.0 seconds", "allocating the KV cache"),
        ("INFO init engine (profile, create kv cache, warmup model) took 2.0 seconds", "warming up"),
        ("INFO Started server process [12]", "starting the API"),
    ],
)
def test_phase_of_a_line(line: str, phase: str) -> None:
    index = phase_index(line)
    assert index is not None
    assert PHASES[index][0] == phase


def test_other_lines_are_no_phase() -> None:
    assert phase_index("INFO nothing of interest") is None
    assert phase_index("") is None


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_error_is_found_behind_vllms_prefix(prefix: str) -> None:
    error = PackError("tensor-missing", "a.b.trellis is missing", expected="x", found="y", hint="fetch it")
    text = f"glm53_exl3.errors.PackError: {error}"
    lines = ["noise", *(prefix + line for line in text.splitlines()), "more noise", "RuntimeError: engine died"]
    found = find_error(lines)
    assert found is not None
    assert str(found) == str(error)


def test_the_last_error_counts_and_none_is_none() -> None:
    name = "glm53_exl3.errors.PackError: error:"
    lines = [f"{name} first-one: a", "hint: h1", f"{name} second-one: b"]
    found = find_error(lines)
    assert found is not None
    assert (found.id, found.what, found.hint) == ("second-one", "b", "")
    assert find_error(["ValueError: error: not ours", "an error: 5", "c++: error: foo: No such file"]) is None


def test_lines_of_two_ranks_are_kept_apart() -> None:
    error = PackError("tensor-missing", "a.b.trellis is missing", expected="x", found="y", hint="fetch it")
    first, *rest = f"glm53_exl3.errors.PackError: {error}".splitlines()
    lines = [f"(Worker_TP0 pid=1) {first}"]
    for line in rest:
        lines += ["(Worker_TP1 pid=2) something else", f"(Worker_TP0 pid=1) {line}"]
    assert str(find_error(lines)) == str(error)
