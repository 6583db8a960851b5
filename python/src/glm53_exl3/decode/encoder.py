"""Encoding of tiles: the packed words whose decoded values are closest to given samples."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from glm53_exl3.decode.codebooks import codebook_table
from glm53_exl3.decode.packing import pack_symbols
from glm53_exl3.errors import FormatError, Glm53Error
from glm53_exl3.format.tensors import TILE_SYMBOLS, require_bits

#: Called with the number of tiles encoded so far.
Progress = Callable[[int], None]

#: Tiles between two calls of the progress callback: a few seconds of work at most.
_BATCH = 64


def _viterbi() -> ModuleType:
    try:
        from glm53_exl3.decode import viterbi
    except ModuleNotFoundError as error:
        if error.name != "numba":
            raise
        raise Glm53Error(
            "numba-missing",
            "quantizing needs numba, which is not installed",
            hint="pip install 'glm53-exl3[quantize]'",
        ) from error
    return viterbi


def encode_tiles(x: Tensor, bits: int, codebook: str, progress: Progress | None = None) -> Tensor:
    """Encode samples as they are, without scaling, to the closest tiles that a tail-biting search finds.

    Uses as many threads as torch does (`torch.set_num_threads`); the result does not depend on their number. Samples
    beyond 8, twice the range of every codebook, count as 8.

    Args:
        x: floating point `[n, 256]` in stream order (see `matrix_to_tiles`), on any device.
        bits: bits a weight, 1 to 8.
        codebook: `3inst`, `mcg` or `mul1`.
        progress: called with the number of tiles encoded so far, now and then and at the end.

    Returns:
        int16 `[n, 16*bits]` on the CPU.

    Raises:
        FormatError: `bits-range`, `codebook-unknown`, `tile-shape`, or `weight-finite` for NaN or infinity.
        Glm53Error: `numba-missing`.
    """
    require_bits(bits, "encode_tiles")
    table = codebook_table(codebook).float().numpy()
    if not x.dtype.is_floating_point or x.dim() != 2 or x.shape[1] != TILE_SYMBOLS:
        raise FormatError(
            "tile-shape",
            "samples are not tiles",
            expected=f"floating point [n, {TILE_SYMBOLS}]",
            found=f"{x.dtype} {list(x.shape)}",
            hint="cut the weight with matrix_to_tiles",
        )
    samples = x.detach().to("cpu", torch.float32)
    require_finite(samples, "samples")
    viterbi = _viterbi()
    samples = samples.clamp(-viterbi.SAMPLE_LIMIT, viterbi.SAMPLE_LIMIT).contiguous()
    words = torch.empty(len(samples), TILE_SYMBOLS * bits // 16, dtype=torch.int16)
    threads = torch.get_num_threads()
    step = _BATCH * threads
    for begin in range(0, len(samples), step):
        symbols = viterbi.encode(samples[begin : begin + step].numpy(), table, bits, threads)
        words[begin : begin + step] = pack_symbols(torch.from_numpy(symbols), bits)
        if progress is not None:
            progress(min(begin + step, len(samples)))
    return words


def require_finite(values: Tensor, where: str) -> None:
    """Check that no value is NaN or infinite.

    Raises:
        FormatError: `weight-finite`, naming `where`, the kind, the count and the first position.
    """
    finite = values.isfinite()
    if finite.all():
        return
    first = (~finite).nonzero()[0].tolist()
    kind = "NaN" if values.isnan().any() else "infinity"
    raise FormatError(
        "weight-finite",
        f"{where}: a weight with {kind} cannot be quantized",
        expected="finite values",
        found=f"{int((~finite).sum())} values that are not, the first at {first}",
        hint="check the checkpoint the weight comes from, or the cast that made it",
    )
