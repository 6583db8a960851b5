"""Load on a real server: `bench serve`, and 500 requests at a time when clients come and go.

`docs/benchmark.md` has the figures.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glm53_exl3.bench.answer import Exchange
from glm53_exl3.bench.endpoint import parse_endpoint
from glm53_exl3.bench.exchange import ask
from glm53_exl3.bench.load import LevelPlan, Request, send_all
from glm53_exl3.bench.receipt import read_receipt
from glm53_exl3.demo.faq import SERVED_NAME, demo_pack, load_faq
from glm53_exl3.serve.process import ServerProcess
from support.memory_use import own_bytes
from support.processes import family

FAQ = load_faq()
PROGRAM = Path(sys.executable).with_name("glm53-exl3")
CLIENTS = 32
WARM_UP_REQUESTS = 100
REQUESTS = 500
LEAVE_SHARE = 0.3
#: The first 500 add 9 to 13 MiB, which tapers off (docs/benchmark.md); 50 KiB kept of each request would be this.
MOST_GROWTH_BYTES = 24 << 20
IDLE_SECONDS = 20
AT_REST = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*\} (\S+)$", re.MULTILINE
)


@pytest.fixture(scope="module")
def server(start_server: Callable[..., Any]) -> Iterator[ServerProcess]:
    with start_server() as running:
        yield running


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, "bench", *arguments], capture_output=True, text=True, timeout=300)


def test_bench_serve_knows_the_server_and_counts_its_tokens(server: ServerProcess, tmp_path: Path) -> None:
    out = tmp_path / "receipt.json"
    size = ["--concurrency", "1,4", "--prompt-tokens", "40", "--max-tokens", "8"]
    done = bench("serve", "--url", server.command.url, *size, "--out", out)
    assert done.returncode == 0, done.stderr
    found = read_receipt(out)
    conditions = found.conditions
    assert conditions["server"]["vllm_version"] == "0.32.0"
    assert conditions["server"]["model"] == SERVED_NAME
    assert conditions["server"]["max_model_len_tokens"] == 192
    assert conditions["server"]["flags"]["--max-num-seqs"] == "16"
    assert conditions["server"]["flags"]["--enforce-eager"] == "true"
    assert conditions["server"]["environment"]["VLLM_NO_USAGE_STATS"] == "1"
    config = (demo_pack() / "config.json").read_bytes()
    assert conditions["pack"]["config_sha256"] == hashlib.sha256(config).hexdigest()
    assert conditions["machine"]["runs"] == "server and client"
    samples = [sample for level in found.levels for sample in level.samples]
    assert {(sample.outcome, sample.completion_tokens) for sample in samples} == {("answered", 8)}
    assert len(samples) == 7 * (1 + 4)
    # The tokenizer knows words by bytes, and the words of a prompt have one length.
    assert {sample.prompt_tokens for sample in samples} <= set(range(38, 43))
    assert bench("compare", out, out).returncode == 0


def test_bench_serve_gets_the_right_answers_to_questions(server: ServerProcess, tmp_path: Path) -> None:
    questions, out = tmp_path / "questions.txt", tmp_path / "receipt.json"
    questions.write_text("".join(f"{entry.question}\n" for entry in FAQ))
    options = ["--concurrency", "16", "--runs", "1", "--warm-up", "0", "--requests", str(len(FAQ))]
    done = bench("serve", "--url", server.command.url, "--questions", questions, *options, "--out", out)
    assert done.returncode == 0, done.stderr
    given = {sample.number: sample.output_sha256 for sample in read_receipt(out).levels[0].samples}
    assert given == {n: hashlib.sha256(entry.answer.encode()).hexdigest() for n, entry in enumerate(FAQ)}


def test_500_requests_with_clients_that_leave_do_no_harm(server: ServerProcess) -> None:
    endpoint = parse_endpoint(server.command.url)
    requests = LevelPlan(CLIENTS, WARM_UP_REQUESTS + REQUESTS, 0, 1, LEAVE_SHARE, seed=4).requests(0)

    def send(request: Request) -> Exchange:
        question = FAQ[request.number % len(FAQ)].question
        body = {"model": SERVED_NAME, "messages": [{"role": "user", "content": question}], "temperature": 0}
        return ask(endpoint, body, timeout_seconds=120, leave_after_events=request.leave_after_events)

    send_all(send, requests[:WARM_UP_REQUESTS], CLIENTS)
    wait_idle(server)
    before = own_bytes(family(server.pid))
    started = time.monotonic()
    sent = send_all(send, requests[WARM_UP_REQUESTS:], CLIENTS)
    seconds = time.monotonic() - started
    wait_idle(server)
    growth = own_bytes(family(server.pid)) - before
    outcomes = Counter(each.exchange.outcome for each in sent)
    print(f"{REQUESTS} requests in {seconds:.0f} s, {dict(outcomes)}, {before >> 20} MiB, {growth / 2**20:+.1f} MiB")

    assert sum(outcomes.values()) == REQUESTS
    assert set(outcomes) == {"answered", "left"}, [each.exchange.detail for each in sent]
    assert outcomes["left"] == pytest.approx(REQUESTS * LEAVE_SHARE, abs=0.1 * REQUESTS)
    wrong = {
        each.request.number: each.exchange.text
        for each in sent
        if each.exchange.outcome == "answered" and each.exchange.text != FAQ[each.request.number % len(FAQ)].answer
    }
    assert wrong == {}
    assert growth < MOST_GROWTH_BYTES
    log = server.log_path.read_text()
    assert [line for line in log.splitlines() if "ERROR" in line or "Traceback" in line] == []


def wait_idle(server: ServerProcess) -> None:
    """Wait until the requests of those who left are gone, and what they held: that has to be soon."""
    deadline = time.monotonic() + IDLE_SECONDS
    while (busy := _busy(server)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert busy == {}


def _busy(server: ServerProcess) -> dict[str, float]:
    """What of a server is not at rest."""
    with urllib.request.urlopen(f"{server.command.url}/metrics", timeout=10) as answer:
        values = dict(AT_REST.findall(answer.read().decode()))
    assert set(values) == {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"}
    return {name: float(value) for name, value in values.items() if float(value)}
