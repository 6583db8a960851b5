"""Time and peak memory of `make demo`, in this checkout or from an empty clone.

    .venv/bin/python tests/bench/bench_demo.py [--clone DIR] [--json]

Memory is the proportional set size of `make` and everything below it, sampled ten times a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 0.1


def tree_bytes(process: psutil.Process) -> int:
    """Proportional set size of a process and its descendants."""
    total = 0
    try:
        members = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in members:
        try:
            total += member.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return total


def run_demo(checkout: Path) -> dict[str, float]:
    """Seconds from the start of `make demo` to its end, and the peak in GiB."""
    started = time.monotonic()
    peak = 0
    with subprocess.Popen(["make", "demo"], cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as make:
        watched = psutil.Process(make.pid)
        while make.poll() is None:
            peak = max(peak, tree_bytes(watched))
            time.sleep(SAMPLE_SECONDS)
        assert make.stdout is not None
        answer = make.stdout.read().decode().strip().splitlines()[-1]
    if make.returncode:
        raise SystemExit(f"make demo ended with {make.returncode}")
    print(answer, flush=True)
    return {"seconds": round(time.monotonic() - started, 1), "peak_gib": round(peak / 2**30, 2)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clone", type=Path, metavar="DIR", help="clone into DIR, run there, and once more there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    if options.clone:
        subprocess.run(["git", "clone", "--quiet", ROOT, options.clone], check=True)
        results["make demo, empty clone"] = run_demo(options.clone)
        results["make demo, again"] = run_demo(options.clone)
    else:
        results["make demo"] = run_demo(ROOT)
    if options.json:
        print(json.dumps(results))
        return
    for name, result in results.items():
        print(f"{name}: {result['seconds']} s, peak {result['peak_gib']} GiB")


if __name__ == "__main__":
    main()
