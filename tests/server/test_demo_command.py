"""`glm53-exl3 demo --keep` as a user runs it: phases, the answer, a server that stays, and a clean end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from glm53_exl3.demo.faq import load_faq
from support.processes import family, survivors

PROGRAM = Path(sys.executable).with_name("glm53-exl3")
ENTRY = load_faq()[7]


def read_until_serving(lines: Iterable[str]) -> str:
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if line.startswith("serving "):
            return "".join(seen)
    pytest.fail("the demo ended before it served:\n" + "".join(seen))


@pytest.mark.timeout(300)
def test_demo_answers_keeps_serving_and_ends_on_ctrl_c() -> None:
    command = [PROGRAM, "demo", ENTRY.question, "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        try:
            text = read_until_serving(demo.stderr)
        except BaseException:
            demo.send_signal(signal.SIGINT)
            raise
        served = re.search(r"serving \S+ at (http://127\.0\.0\.1:\d+)/v1 until Ctrl-C", text)
        assert served is not None, text
        with urllib.request.urlopen(f"{served[1]}/health", timeout=10) as answer:
            assert answer.status == 200
        below = family(demo.pid)[1:]
        assert below
        started = time.monotonic()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(timeout=10) == 130
        assert survivors(below, max(0.0, 10 - (time.monotonic() - started))) == []
        assert demo.stdout.read() == f"{ENTRY.answer}\n"
    for phase in ("importing vLLM", "starting the engine", "loading weights", "ready"):
        assert phase in text
    assert "(the right words, with the right probability)" in text
