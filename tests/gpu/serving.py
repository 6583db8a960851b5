"""A pack served by the real vLLM on a GPU, for as long as a test module wants it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glm53_exl3.demo.faq import SERVED_NAME
from glm53_exl3.kernels.settings import Backend
from glm53_exl3.pack.inventory import read_inventory
from glm53_exl3.serve.argv import ServerCommand
from glm53_exl3.serve.ports import free_port
from glm53_exl3.serve.process import ServerProcess

START_SECONDS = 300
SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Case:
    """A way to serve a pack."""

    name: str
    arguments: tuple[str, ...]
    graphs: bool = True
    kernel: Backend = "native"


def with_graphs(name: str, *arguments: str, kernel: Backend = "native") -> Case:
    """torch.compile and CUDA graphs of few sizes, so that a start is short."""
    sizes = json.dumps({"cudagraph_capture_sizes": SIZES})
    return Case(name, ("--compilation-config", sizes, *arguments), kernel=kernel)


def eager(name: str, *arguments: str) -> Case:
    """Neither."""
    return Case(name, ("--enforce-eager", *arguments), graphs=False)


@dataclass(frozen=True)
class Served:
    """A running server and what it serves."""

    pack: Path
    case: Case
    server: ServerProcess
    seconds: float

    @property
    def url(self) -> str:
        """Base URL."""
        return self.server.command.url

    @property
    def log(self) -> str:
        """What vLLM has printed."""
        return self.server.log_path.read_text()


@contextmanager
def serve(pack: Path, case: Case, log_path: Path, max_model_len: int, *arguments: str) -> Iterator[Served]:
    """Start vLLM on a pack; its log is also kept where GLM53_EXL3_TEST_LOGS says."""
    port = free_port()
    command = ServerCommand(
        argv=(
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(pack)),
            *("--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "bfloat16", "--max-model-len", str(max_model_len), "--max-num-seqs", "32"),
            *("--kv-cache-memory-bytes", str(4 << 30), "--gpu-memory-utilization", "0.1", *arguments, *case.arguments),
            # The log then counts the steps that ran in each mode, not only the graphs that were recorded.
            "--cudagraph-metrics",
        ),
        environment={"GLM53_EXL3_KERNEL": case.kernel, "VLLM_LOG_STATS_INTERVAL": "1"},
        url=f"http://127.0.0.1:{port}",
        served_name=SERVED_NAME,
    )
    started = time.monotonic()
    try:
        with ServerProcess(command, log_path) as server:
            server.wait_healthy(START_SECONDS)
            yield Served(pack, case, server, time.monotonic() - started)
    finally:
        if (folder := os.environ.get("GLM53_EXL3_TEST_LOGS")) and log_path.exists():
            (Path(folder) / f"{pack.name}-{case.name}.log").write_bytes(log_path.read_bytes())


def require_backend_and_graphs(served: Served) -> None:
    """The log names backend and bits of every layer, the graphs that were recorded, and steps that ran in them."""
    log = served.log
    backend = "(?:native|exllamav3)[^\n]*" if served.case.kernel == "auto" else served.case.kernel
    said = rf"8 EXL3 experts, \w+, bits (\d)/(\d)/(\d) \(gate/up/down\), {backend} backend"
    line = rf"layers\.(\d+)\.(?:\w+\.)?mlp\.experts: {said}"
    found = {int(layer): bits for layer, *bits in re.findall(line, log)}
    assert found == {
        layer.layer: [str(layer.projections[name].bits) for name in ("gate_proj", "up_proj", "down_proj")]
        for layer in read_inventory(served.pack).layers.values()
    }
    assert "reference backend" not in log
    assert "WRONG" not in log
    assert bool(re.search(r"native +right, error .*\n.*exllamav3 +right, error ", log)) == (
        served.case.kernel == "auto"
    )
    captured = set(re.findall(r"Capturing CUDA graphs[^:]*?(PIECEWISE|FULL)", log))
    assert captured == ({"PIECEWISE", "FULL"} if served.case.graphs else set())
    # Rows of the table: tokens, padded tokens, paddings, mode, steps.
    ran = set(re.findall(r"\|\s*\d+\s*\|\s*\d+\s*\|\s*\d+\s*\|\s*\w*?(NONE|PIECEWISE|FULL)\s*\|", log))
    assert "FULL" in ran if served.case.graphs else ran <= {"NONE"}


def accepted_drafts(served: Served) -> int:
    """Drafted tokens that the model took; 0 when none are counted."""
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pattern = r"^vllm:spec_decode_num_accepted_tokens_total(?:\{[^}]*\})? (\S+)$"
    return int(sum(float(count) for count in re.findall(pattern, text, re.MULTILINE)))
