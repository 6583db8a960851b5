"""Speed of decoding and encoding on this CPU.

    python tests/bench/bench_decode.py [--json] [--threads N] [--codebook mcg]

Prints decoded weights a second and encoder milliseconds a tile (wall clock, all threads) for K of 1 to 8, the best of
several rounds after a warm-up. Other load on the machine lowers both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from glm53_exl3.decode import decode_trellis, encode_tiles
from glm53_exl3.format.codebooks import CODEBOOKS
from glm53_exl3.format.tensors import TILE_SYMBOLS, trellis_shape

IN_FEATURES, OUT_FEATURES = 4096, 4096
TILES_A_THREAD = 8


def best_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def measure(bits: int, codebook: str, rounds: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(bits)
    shape = trellis_shape(IN_FEATURES, OUT_FEATURES, bits)
    trellis = torch.randint(-32768, 32768, shape, dtype=torch.int16, generator=generator)
    samples = torch.randn(TILES_A_THREAD * torch.get_num_threads(), TILE_SYMBOLS, generator=generator)
    decode = best_seconds(lambda: decode_trellis(trellis, codebook), rounds)
    encode = best_seconds(lambda: encode_tiles(samples, bits, codebook), rounds)
    return {
        "bits": bits,
        "weights_per_second": IN_FEATURES * OUT_FEATURES / decode,
        "encode_ms_per_tile": encode * 1e3 / len(samples),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of EXL3 decoding and encoding on this CPU.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--codebook", choices=CODEBOOKS, default="mcg")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [measure(bits, options.codebook, options.rounds) for bits in range(1, 9)]
    if options.json:
        print(json.dumps({"codebook": options.codebook, "threads": options.threads, "rows": rows}, indent=1))
        return
    print(f"codebook {options.codebook}, {options.threads} threads")
    print("bits  decode, million weights/s  encode, ms/tile")
    for row in rows:
        print(f"{row['bits']:4}  {row['weights_per_second'] / 1e6:25.1f}  {row['encode_ms_per_tile']:15.1f}")


if __name__ == "__main__":
    main()
