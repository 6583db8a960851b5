"""How large the memory is that a launch of exl3_moe works in. Without torch: the memory plan counts by it too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Rows that exl3_moe works on at a time; the scratch holds a multiple of it.
TILE_ROWS: Final = 16
#: More rows than this gain nothing; the recipe has as many.
MAX_ROWS: Final = 2048
#: Bound of the scratch. For GLM-5.3-Flash 2,048 rows take 288 MiB on a GB10, which runs 6 experts at once, and 768 MiB
#: on an H200, which runs 16. With 800 rows, which fit 300 MiB, a batch of 2,048 tokens took 26 % longer there.
MAX_BYTES: Final = 1 << 30
MAX_TOP_K: Final = 32
#: SMs that exl3_moe gives one expert (exllamav3 1.4.4, `exl3_moe_max_concurrency`).
SMS_PER_EXPERT: Final = 8


@dataclass(frozen=True)
class Shape:
    """What the scratch depends on.

    Attributes:
        hidden: width of the activations.
        intermediate: width between up and down, of this rank.
        experts: local experts.
        concurrency: experts that one launch runs at once.
        rows: tokens of one launch, and so the most rows of an expert.
    """

    hidden: int
    intermediate: int
    experts: int
    concurrency: int
    rows: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the scratch of exl3_moe: fp16 `[concurrency, rows, hidden]` and `[.., intermediate]`, each twice."""
        return self.concurrency * self.rows * 2 * (self.hidden + self.intermediate) * 2

    @property
    def buffer_bytes(self) -> int:
        """Bytes of what `run_layer` keeps beside it.

        Activations `[rows, hidden]` in fp16 and their sums in fp32, int64 `[experts + 1]` choices of each expert, and
        of each choice `[rows * MAX_TOP_K]` its token in int64 and its weight in fp16.
        """
        return self.rows * (self.hidden * (2 + 4) + MAX_TOP_K * (8 + 2)) + (self.experts + 1) * 8


def shape_for(hidden: int, intermediate: int, experts: int, concurrency: int, max_tokens: int) -> Shape:
    """The largest useful scratch within :data:`MAX_BYTES`.

    Args:
        hidden, intermediate, experts, concurrency: see :class:`Shape`.
        max_tokens: largest batch; larger ones are run in pieces.
    """
    one_tile = Shape(hidden, intermediate, experts, concurrency, TILE_ROWS).num_bytes
    tiles = min(-(-max_tokens // TILE_ROWS), MAX_ROWS // TILE_ROWS, max(1, MAX_BYTES // one_tile))
    return Shape(hidden, intermediate, experts, concurrency, max(1, tiles) * TILE_ROWS)
