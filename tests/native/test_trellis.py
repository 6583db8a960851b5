"""The decoder of the native kernels, compiled for the host, against the decoder in torch bit for bit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from glm53_exl3.decode.codebooks import lookup
from glm53_exl3.decode.packing import unpack_states
from glm53_exl3.format.codebooks import Codebook

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "python" / "csrc" / "native"
TILES = 64
NUMBERS: dict[Codebook, int] = {"mcg": 0, "mul1": 1, "3inst": 2}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("native") / "decode_tile"
    command = ["g++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}", "-o", target]
    subprocess.run([*command, HERE / "decode_tile.cpp"], check=True)
    return target


def values(hashes: np.ndarray, codebook: Codebook) -> np.ndarray:
    """Weights fp16 from hashes uint32, as the kernels' instructions make them."""
    halves = hashes.view(np.uint16).reshape(*hashes.shape, 2).view(np.float16)
    if codebook == "mul1":
        # fp32 holds product and sum exactly, so the conversion is the one rounding of a fused fp16 operation.
        return (halves[..., 0].astype(np.float32) * np.float32(0.00676727294921875) - np.float32(10.3828125)).astype(
            np.float16
        )
    return halves[..., 0] + halves[..., 1]


@pytest.mark.parametrize("codebook", NUMBERS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_weight_is_that_of_the_format(program: Path, bits: int, codebook: Codebook) -> None:
    generator = np.random.default_rng(bits)
    tiles = generator.integers(-(2**15), 2**15, (TILES, 16 * bits), dtype=np.int16)
    done = subprocess.run(
        [program, str(bits), str(NUMBERS[codebook])], input=tiles.tobytes(), capture_output=True, check=True
    )
    found = values(np.frombuffer(done.stdout, dtype=np.uint32).reshape(TILES, 256), codebook)
    expected = lookup(unpack_states(torch.from_numpy(tiles)), codebook).numpy()
    assert np.array_equal(found.view(np.uint16), expected.view(np.uint16))
