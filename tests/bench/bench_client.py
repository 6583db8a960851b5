"""What the load generator itself takes: processor time for each event of a stream, beside the OpenAI client.

.venv/bin/python tests/bench/bench_client.py [--events N]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from glm53_exl3.bench.endpoint import parse_endpoint
from glm53_exl3.bench.exchange import ask
from glm53_exl3.serve.chat import openai_client

TESTS = Path(__file__).parents[1]
ROUNDS = 5
#: In a process of its own, so that its time is not counted; a pause before each event, so that none are read together.
SERVER = """
import sys
from support.openai_server import Behaviour, openai_server
with openai_server(Behaviour(events=int(sys.argv[1]), spacing_seconds=0.0005)) as url:
    print(url, flush=True)
    sys.stdin.read()
"""
MESSAGES = [{"role": "user", "content": "go on"}]


@contextmanager
def server(num_events: int) -> Iterator[str]:
    """URL of a server whose answers have so many events."""
    command = [sys.executable, "-c", SERVER, str(num_events)]
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def with_ask(url: str) -> int:
    """Events of one answer, read by the load generator."""
    given = ask(parse_endpoint(url), {"model": "pace", "messages": MESSAGES}, timeout_seconds=600)
    assert given.outcome == "answered"
    return given.completion_tokens or 0


def with_openai(url: str) -> int:
    """Events of one answer, read by the OpenAI client."""
    stream = openai_client(url).chat.completions.create(
        model="pace", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    return sum(bool(choice.delta.content) for chunk in stream for choice in chunk.choices)


def microseconds(read: Callable[[str], int], url: str) -> float:
    """Processor time of this process for an event."""
    started = time.process_time()
    num_events = read(url)
    return 1e6 * (time.process_time() - started) / num_events


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5000)
    options = parser.parse_args()
    with server(options.events) as url:
        for name, read in (("glm53-exl3", with_ask), ("openai", with_openai)):
            read(url)
            found = sorted(microseconds(read, url) for _ in range(ROUNDS))
            print(f"{name}: {found[ROUNDS // 2]:.0f} us an event ({found[0]:.0f} to {found[-1]:.0f})")


if __name__ == "__main__":
    main()
