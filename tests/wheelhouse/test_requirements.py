"""Hashed requirements of the shipped locks, for pip alone."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys

import pytest

from support.tiny_wheels import ROOT, TOOLS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(TOOLS / "requirements.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("runtime", ["fork", "upstream", "demo"])
def test_every_installed_wheel_of_a_lock_has_one_line(runtime: str) -> None:
    lock = json.loads((ROOT / "nix" / "locks" / f"{runtime}.json").read_text(encoding="utf-8"))
    done = run(runtime)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", done.stdout, re.MULTILINE))
    wanted = {
        f"{name}=={entry['version']}": base64.b64decode(entry["hash"].removeprefix("sha256-")).hex()
        for name, entry in lock["systems"]["aarch64-linux"].items()
        if not entry.get("build_only")
    }
    assert found == wanted
    assert len(found) == len(done.stdout.splitlines()) - 2
    assert done.stdout.startswith(f"# {len(wanted)} wheels of the runtime `{runtime}` for cp312, ")


def test_system_that_a_lock_does_not_have_is_refused() -> None:
    done = run("upstream", "--system", "x86_64-linux")
    assert done.returncode == 1
    assert "error: system-unknown: the lock of upstream has no wheels for x86_64-linux" in done.stderr
    assert "hint: --system aarch64-linux" in done.stderr
    assert done.stdout == ""
