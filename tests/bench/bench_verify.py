"""How long `glm53-exl3 verify` and `inspect` take on a pack of 120 shards with the real header shapes.

    python tests/bench/bench_verify.py [--json] [--rounds N]

Writes the pack (sparse, about 36 MB) and one whose markers are scattered (190 MB) into a temporary folder, then runs
the command as a user does, interpreter start included and headers in the page cache. The wall clock of the best round
must be below two seconds; the exit code says whether it is. Other load on the machine lengthens it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.synthetic_pack import write_synthetic_pack

LIMIT_SECONDS = 2.0
START = "from glm53_exl3.cli.main import main; main()"


def measure(arguments: list[str], rounds: int) -> dict[str, float]:
    """Best wall clock, and processor time and peak memory of that kind of run."""
    best, processor = float("inf"), float("inf")
    for _ in range(rounds):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", START, *arguments], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = min(processor, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": round(best, 3), "processor_seconds": round(processor, 3), "peak_mib": round(peak, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of verify and inspect on a pack of 120 shards.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        pack = write_synthetic_pack(Path(folder) / "pack")
        written = time.perf_counter() - begin
        scattered = write_synthetic_pack(Path(folder) / "scattered", scattered=True)
        rows = {
            "verify": measure(["verify", str(pack)], options.rounds),
            "verify, markers scattered": measure(["verify", str(scattered)], options.rounds),
            "inspect": measure(["inspect", str(pack)], options.rounds),
        }
    load = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"write_seconds": round(written, 3), "load": load, "rows": rows}, indent=1))
    else:
        print(f"load {load:.1f} on {os.cpu_count()} cores; the pack was written in {written:.1f} s")
        print(f"{'':26} {'wall, s':>8} {'processor, s':>13} {'peak, MiB':>10}")
        for name, row in rows.items():
            print(f"{name:26} {row['seconds']:8.2f} {row['processor_seconds']:13.2f} {row['peak_mib']:10.0f}")
    if rows["verify"]["seconds"] >= LIMIT_SECONDS:
        sys.exit(f"verify took {rows['verify']['seconds']} s, not less than {LIMIT_SECONDS:g} s")


if __name__ == "__main__":
    main()
