"""What a decode step of GLM-5.3-Flash should take on a GB10, by bytes and instruction counts. Pure; no measurement.

Sizes are those of the model's configuration (`configuration_glm5_next.py` of huggingface/transformers); every other
number is one of :class:`Assumptions`, which docs/performance.md explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from glm53_exl3.bench_kernels.floors import expected_experts, expert_bytes
from glm53_exl3.bench_kernels.settings import PROFILES, LayerShape

GLM: Final[LayerShape] = PROFILES["glm-5.3-flash"][0]
#: Layers 3 to 44; the MTP layer has experts too and is not part of a step without speculation.
MOE_LAYERS: Final = 42
_KDA_LAYERS: Final = 34
_MLA_LAYERS: Final = 11
_DENSE_LAYERS: Final = 3
_BF16: Final = 2
_FP32: Final = 4
_TILE_WEIGHTS: Final = 256
#: mma.m16n8k16 that a tile of 16 by 16 weights takes for up to 8 rows, where the two halves of a codeword are fed as
#: two k positions, and its operations.
_MMA_A_TILE: Final = 2
_MMA_OPERATIONS: Final = 2 * 16 * 8 * 16
_MICRO: Final = 1e6
#: A layer of experts by exl3_moe on a GB10, as the recipe reports it for its v0.3.1 (40 layers in 19.9 ms).
EXL3_MOE_SECONDS: Final = 19.9e-3 / 40


@dataclass(frozen=True)
class Assumptions:
    """Of a GB10, none of them measured by this project.

    Attributes:
        nominal_bytes_per_second: bandwidth of its memory by its data sheet.
        copied_bytes_per_second: what peers measured with kernels that only read or copy.
        bf16_bytes_per_second: what peers derive for products of one row with bf16 weights.
        sms: multiprocessors.
        quarters: of each, with one issue a clock.
        clock_hertz: of the multiprocessors.
        instructions: issued a tile of 16 by 16 weights, by bits: the loop of a prototype of ours, compiled for sm_121a.
        mma_operations_per_second: fp16 products with fp32 sums, and half of that, as on GeForce cards.
    """

    nominal_bytes_per_second: float = 273e9
    copied_bytes_per_second: float = 231e9
    bf16_bytes_per_second: float = 170e9
    sms: int = 48
    quarters: int = 4
    clock_hertz: float = 2.42e9
    instructions: Mapping[int, float] = field(default_factory=lambda: {2: 35.9, 3: 40.7})
    mma_operations_per_second: tuple[float, float] = (125e12, 62.5e12)


@dataclass(frozen=True)
class ExpertsTime:
    """One layer of routed experts, in microseconds.

    Attributes:
        experts: different experts of a batch, on average.
        num_bytes: of their trellises and scales.
        nominal: reading these at the nominal bandwidth.
        copied: reading these at the bandwidth of a copy.
        issue_least: all instructions, products beside them.
        issue_most: products after everything else, at the lower of the assumed rates.
    """

    experts: float
    num_bytes: float
    nominal: float
    copied: float
    issue_least: float
    issue_most: float


def experts_time(tokens: int, bits: int, assumed: Assumptions) -> ExpertsTime:
    """A layer at a batch size of at most 8 rows an expert, by uniform routing."""
    experts = expected_experts(GLM, tokens)
    num_bytes = experts * expert_bytes(GLM, (bits,) * 3)
    tiles = experts * 3 * GLM.hidden * GLM.intermediate / _TILE_WEIGHTS
    slots = assumed.sms * assumed.quarters * assumed.clock_hertz
    products = tiles * _MMA_A_TILE * _MMA_OPERATIONS
    fast, slow = (products / rate for rate in assumed.mma_operations_per_second)
    count = assumed.instructions[bits]
    return ExpertsTime(
        experts,
        num_bytes,
        num_bytes / assumed.nominal_bytes_per_second * _MICRO,
        num_bytes / assumed.copied_bytes_per_second * _MICRO,
        max(tiles * count / slots, fast) * _MICRO,
        (tiles * (count - _MMA_A_TILE) / slots + slow) * _MICRO,
    )


def dense_bytes() -> dict[str, int]:
    """Bytes that one token reads beside its experts, weights in bf16 as the pack has them; and writes, of the state.

    In the order of size. Two entries are counted from the parameters of the modules, not by a formula: mHC, and the
    small parts of the indexer.
    """
    hidden, heads, head = GLM.hidden, 64, 128
    width = heads * head
    in_proj = hidden * (3 * width + heads + 2 * head)
    kda = (in_proj + width * hidden + 2 * head * width) * _BF16 + 3 * width * 4 * _FP32
    q_rank, kv_rank, qk_head, v_head = 1536, 512, 256, 256
    index_width = 32 * head
    mla = (
        hidden * (q_rank + kv_rank)
        + q_rank * heads * qk_head
        + kv_rank * heads * (qk_head + v_head)
        + heads * v_head * hidden
        + q_rank * index_width
    )
    return {
        "KDA": _KDA_LAYERS * kda,
        "MLA": _MLA_LAYERS * mla * _BF16 + 30_000_000,
        "shared experts": MOE_LAYERS * 3 * hidden * GLM.intermediate * _BF16,
        "lm_head": 154_880 * hidden * _BF16,
        "dense MLP": _DENSE_LAYERS * 3 * hidden * 12_288 * _BF16,
        "KDA state, read and written": _KDA_LAYERS * heads * head * head * _FP32 * 2,
        "mHC": 140_000_000,
        "router": MOE_LAYERS * GLM.experts * hidden * _BF16,
    }


@dataclass(frozen=True)
class Step:
    """One decode step of one sequence without speculation.

    Attributes:
        what: the case.
        dense_seconds: of everything beside the experts.
        experts_seconds: of all layers of experts.
    """

    what: str
    dense_seconds: float
    experts_seconds: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.dense_seconds + self.experts_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second, one a step."""
        return 1 / self.seconds


def steps(assumed: Assumptions) -> tuple[Step, ...]:
    """The pack K2 on one GB10, by what its kernels reach. No launch gaps, attention or sampling."""
    dense = sum(dense_bytes().values())
    experts = MOE_LAYERS * experts_time(1, 2, assumed).num_bytes
    nominal, copied = assumed.nominal_bytes_per_second, assumed.copied_bytes_per_second
    bf16 = assumed.bf16_bytes_per_second
    return (
        Step("all at the nominal bandwidth", dense / nominal, experts / nominal),
        Step("all at the bandwidth of a copy", dense / copied, experts / copied),
        Step("dense as reported, experts at the bandwidth of a copy", dense / bf16, experts / copied),
        Step("dense as reported, `exl3_moe` as reported", dense / bf16, MOE_LAYERS * EXL3_MOE_SECONDS),
    )


#: Batches of the table.
_BATCHES: Final = (1, 2, 3, 4, 8, 16, 32)


def experts_table(assumed: Assumptions) -> list[str]:
    """Markdown: one layer of experts by batch size and bits."""
    lines = [
        "| T | experts | K=2 MB | nominal us | copy us | issue us | K=3 MB | nominal us | copy us | issue us |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for tokens in _BATCHES:
        cells = [str(tokens), f"{experts_time(tokens, 2, assumed).experts:.1f}"]
        for bits in (2, 3):
            found = experts_time(tokens, bits, assumed)
            cells += [
                f"{found.num_bytes / 1e6:.1f}",
                f"{found.nominal:.0f}",
                f"{found.copied:.0f}",
                f"{found.issue_least:.0f} to {found.issue_most:.0f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def dense_table() -> list[str]:
    """Markdown: bytes beside the experts."""
    found = dense_bytes()
    rows = [*found.items(), ("**together**", sum(found.values()))]
    return ["| part | GB |", "| --- | ---: |", *(f"| {name} | {size / 1e9:.2f} |" for name, size in rows)]


def steps_table(assumed: Assumptions) -> list[str]:
    """Markdown: a step by what the kernels reach."""
    lines = ["| case | dense ms | experts ms | step ms | tokens/s |", "| --- | ---: | ---: | ---: | ---: |"]
    for each in steps(assumed):
        parts = (each.dense_seconds * 1e3, each.experts_seconds * 1e3, each.seconds * 1e3, each.tokens_per_second)
        lines.append(f"| {each.what} | {' | '.join(f'{part:.1f}' for part in parts)} |")
    return lines
