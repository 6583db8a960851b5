"""Where tensor parallelism may cut an EXL3 weight.

A shard is a range of whole Hadamard blocks. A cut at a multiple of 16 that is not one of 128 has whole tiles
and therefore loads, but the rotation of the remaining block mixes channels that live on the other rank: the
layer then answers with an error above ten percent and no message. So it is refused here.
"""

from __future__ import annotations

from glm53_exl3.errors import FormatError
from glm53_exl3.format.tensors import HADAMARD


def shard_range(size: int, num_shards: int, shard: int, where: str) -> range:
    """Channels of shard number `shard` when `size` channels are cut into `num_shards` equal parts.

    Raises:
        FormatError: `shard-cut`, naming `where` and the sizes that would do.
    """
    if not 0 <= shard < num_shards:
        raise ValueError(f"shard {shard} of {num_shards}")
    width, rest = divmod(size, num_shards)
    if rest or width % HADAMARD:
        usable = [n for n in range(1, num_shards + 1) if size % (n * HADAMARD) == 0]
        sizes = ", ".join(map(str, usable)) or "none"
        raise FormatError(
            "shard-cut",
            f"{where}: {size} channels over {num_shards} ranks leaves {size / num_shards:g} a rank",
            expected=f"a multiple of {HADAMARD} channels a rank",
            hint=f"use a tensor-parallel size of {sizes}, or --enable-expert-parallel, which cuts no expert",
        )
    return range(shard * width, (shard + 1) * width)
