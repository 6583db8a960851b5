"""Stands in for `vllm serve`: prints what vLLM prints in each phase, then answers as asked. A program, run by tests."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LINES = {
    "importing vLLM": "",
    "starting the engine": "INFO 11-30 10:00:00 [core.py:105] Initializing a V1 LLM engine (v0.32.0) with config",
    "loading weights": "(EngineCore pid=1) INFO 11-30 10:00:01 [gpu.py:40] Starting to load model /pack...",
    "compiling": "(EngineCore pid=1) INFO 11-30 10:00:02 [gpu.py:425] Model loading took 91.3 GiB memory and 60 s",
    "allocating the KV cache": "(EngineCore pid=1) INFO 11-30 10:00:03 [gpu.py:760] Available KV cache memory: 3 GiB",
    "capturing graphs": "Capturing CUDA graphs (PIECEWISE):   0%|          | 0/8 [00:00<?, ?it/s]",
    "warming up": "(EngineCore pid=1) INFO 11-30 10:00:05 [gpu.py:1128] Graph capturing finished in 5 secs",
    "starting the API": "INFO 11-30 10:00:06 [api_server.py:50] Starting vLLM server on http://127.0.0.1:8000",
}


class Answers(BaseHTTPRequestHandler):
    state: argparse.Namespace
    started = time.monotonic()

    def do_GET(self) -> None:
        if self.path == "/metrics":
            # Busy and, unless stuck, at work.
            tokens = 7 if self.state.stuck else int(1000 * (time.monotonic() - self.started))
            running = 1 if self.state.busy else 0
            running_line = f'vllm:num_requests_running{{engine="0"}} {running}.0'
            self.answer(f'{running_line}\nvllm:generation_tokens_total{{engine="0"}} {tokens}.0\n')
        elif self.path == "/v1/models":
            self.answer(json.dumps({"data": [{"id": "model"}]}))
        else:
            self.answer("")

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two phases")
    parser.add_argument("--stall", default="", help="phase in which to stand still")
    parser.add_argument("--die", default="", help="phase in which to end with code 9")
    parser.add_argument("--raise-error", default="", help="phase in which one of our errors ends it")
    parser.add_argument("--die-after", type=float, default=0, help="seconds after ready at which to end with code 4")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--stuck", action="store_true")
    parser.add_argument("--worker", action="store_true", help="start a child that ignores SIGTERM, as a worker may")
    state = parser.parse_args()
    if state.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if state.worker:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code])
    for phase, line in LINES.items():
        if line:
            print(line, flush=True, file=sys.stderr if "Capturing" in line else sys.stdout)
        if phase == state.stall:
            time.sleep(600)
        if phase == state.die:
            os._exit(9)
        if phase == state.raise_error:
            print("glm53_exl3.errors.PackError: error: shard-truncated: x.safetensors is short", flush=True)
            print("  expected: 8 bytes\n\nhint: fetch it again", flush=True)
            sys.exit(1)
        time.sleep(state.pause)
    Answers.state = state
    server = ThreadingHTTPServer(("127.0.0.1", state.port), Answers)
    if state.die_after:
        threading.Timer(state.die_after, lambda: os._exit(4)).start()
    if not state.deaf:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.serve_forever()


if __name__ == "__main__":
    main()
