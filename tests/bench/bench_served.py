"""Tokens a second and time to first token of vLLM by each compiled backend, on a model of random EXL3 experts.

    python tests/bench/bench_served.py [--kernels native,exllamav3] [--layers 4] [--experts 288] [--out FILE]

Writes a Glm4Moe pack whose layers have the shape of GLM-5.3-Flash's (hidden 4096, intermediate 2048, 8 of 288 experts,
2 bits), serves it by one backend after the other with CUDA graphs, and asks over HTTP: prompts are token ids, answers
ignore the end of text.

- decode: for each number of sequences at once, tokens that all of them get in a second once their prompts are read;
- prefill: the time of a prompt of 4,096 tokens to its first token; prefixes are not cached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.bench_load import VOCABULARY, write_bench_pack
from glm53_exl3.demo.faq import demo_pack
from glm53_exl3.serve.argv import ServerCommand
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.process import ServerProcess

NAME = "random"
SHORT, LONG = 32, 224
PROMPT, LONG_PROMPT = 32, 4096
PREFILLS = 7
START_SECONDS = 420


def command_of(pack: Path, kernel: str, most: int, extra: list[str]) -> ServerCommand:
    """vLLM on a pack, with graphs of the sizes that are asked for."""
    port = free_port()
    sizes = sorted({1, 2, 4, 8, 16, 32, most})
    return ServerCommand(
        argv=(
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(pack), "--served-model-name", NAME),
            *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "4608"),
            *("--max-num-seqs", str(most), "--max-num-batched-tokens", str(LONG_PROMPT), "--no-enable-prefix-caching"),
            *("--load-format", "glm53_exl3", "--compilation-config", json.dumps({"cudagraph_capture_sizes": sizes})),
            *extra,
        ),
        # The pack's writer, which this takes over, asks for silence and late decoding.
        environment={"GLM53_EXL3_KERNEL": kernel, "GLM53_EXL3_DECODE": "load", "VLLM_LOGGING_LEVEL": "INFO"},
        url=f"http://127.0.0.1:{port}",
        served_name=NAME,
    )


def ask(url: str, prompt: list[int], tokens: int) -> int:
    """Tokens of one answer."""
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def seconds_of(url: str, sequences: int, prompt: int, tokens: int, draw: random.Random) -> float:
    """Until all of so many answers are there."""
    prompts = [[draw.randrange(VOCABULARY) for _ in range(prompt)] for _ in range(sequences)]
    with ThreadPoolExecutor(sequences) as pool:
        begin = time.perf_counter()
        given = list(pool.map(lambda one: ask(url, one, tokens), prompts))
        took = time.perf_counter() - begin
    assert given == [tokens] * sequences, given
    return took


def measured(url: str, sequences: list[int]) -> dict[str, Any]:
    """Decode rates by sequences, and the median time to the first token of a long prompt."""
    draw = random.Random(0)
    rates: dict[str, float] = {}
    for count in sequences:
        seconds_of(url, count, PROMPT, SHORT, draw)
        found = []
        for _ in range(3):
            short = seconds_of(url, count, PROMPT, SHORT, draw)
            found.append(count * (LONG - SHORT) / (seconds_of(url, count, PROMPT, LONG, draw) - short))
        rates[str(count)] = statistics.median(found)
    first = [seconds_of(url, 1, LONG_PROMPT, 1, draw) for _ in range(PREFILLS)][1:]
    return {"tokens_a_second": rates, "first_token_ms": statistics.median(first) * 1000}


def main() -> None:
    """Print a table of what each backend reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", default="native,exllamav3")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=288)
    parser.add_argument("--sequences", default="1,8,64")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--logs", type=Path, default=Path(os.environ.get("GLM53_EXL3_TEST_LOGS", tempfile.gettempdir()))
    )
    options, extra = parser.parse_known_args()
    sequences = [int(one) for one in options.sequences.split(",")]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        pack = write_bench_pack(Path(folder) / "pack", options.layers, options.experts)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(demo_pack() / name, pack / name)
        for kernel in options.kernels.split(","):
            log = options.logs / f"served-{kernel}.log"
            with ServerProcess(command_of(pack, kernel, max(sequences), extra), log) as server:
                server.wait_healthy(START_SECONDS)
                found[kernel] = measured(server.command.url, sequences)
            print(kernel, json.dumps(found[kernel]), flush=True)
    first = next(iter(found))
    print(f"{'':>24}" + "".join(f"{name:>14}" for name in found) + f"   {first} over the last")
    rows = [(f"tokens/s, {count} at once", [each["tokens_a_second"][str(count)] for each in found.values()], True)
            for count in sequences]  # fmt: skip
    rows.append(("first token, ms", [each["first_token_ms"] for each in found.values()], False))
    for title, values, more_is_better in rows:
        ratio = values[0] / values[-1] if more_is_better else values[-1] / values[0]
        print(f"{title:>24}" + "".join(f"{value:>14.1f}" for value in values) + f"   {ratio:.2f}")
    if options.out:
        options.out.write_text(json.dumps({"layers": options.layers, "experts": options.experts, **found}, indent=1))


if __name__ == "__main__":
    main()
