"""Errors: how they read and that they survive a process boundary."""

import pickle

from glm53_exl3.errors import ExitCode, PackError


def test_render_has_what_expected_found_and_hint() -> None:
    error = PackError("shard-truncated", "a.safetensors is short", expected="10 bytes", found="5 bytes", hint="do x")
    assert str(error).splitlines() == [
        "error: shard-truncated: a.safetensors is short",
        "  expected: 10 bytes",
        "  found: 5 bytes",
        "",
        "hint: do x",
    ]
    assert error.exit_code is ExitCode.FIXABLE


def test_error_survives_pickle() -> None:
    error = PackError("a-b", "what", expected="e", found="f", hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is PackError
    assert str(copy) == str(error)
    assert (copy.id, copy.hint) == ("a-b", "h")
