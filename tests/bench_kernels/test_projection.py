"""The projection for a GB10: against hand-made sums, and as docs/performance.md has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm53_exl3.bench_kernels.projection import (
    MOE_LAYERS,
    Assumptions,
    dense_bytes,
    dense_table,
    experts_table,
    experts_time,
    steps,
    steps_table,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"


def test_a_token_reads_eight_experts() -> None:
    found = experts_time(1, 2, Assumptions())
    # Three trellises of 2 MiB, and fp16 scales of 4096 and 2048 channels for each, from the sizes of the pack.
    assert found.num_bytes == pytest.approx(8 * 3 * (2_097_152 + 2 * (4096 + 2048)))
    assert found.nominal == pytest.approx(185.4, abs=0.1)
    # 786,432 tiles by 35.9 instructions over 192 quarters of 2.42 GHz.
    assert found.issue_least == pytest.approx(60.8, abs=0.1)
    assert MOE_LAYERS * found.num_bytes == pytest.approx(2.13e9, rel=5e-3)


def test_slow_products_bind_before_instructions() -> None:
    slow = Assumptions(mma_operations_per_second=(10e12, 10e12))
    assert experts_time(1, 2, slow).issue_least == pytest.approx(786_432 * 2 * 4096 / 10e12 * 1e6)


def test_bytes_bind_before_instructions_wherever_the_document_says_so() -> None:
    for tokens in (1, 2, 3, 4, 8, 16, 32):
        for bits in (2, 3):
            found = experts_time(tokens, bits, Assumptions())
            assert found.issue_most < found.nominal < found.copied


def test_dense_bytes_are_those_of_the_modules() -> None:
    found = dense_bytes()
    assert found["shared experts"] == 42 * 3 * 4096 * 2048 * 2
    assert found["KDA"] == pytest.approx(34 * 275.6e6, rel=1e-3)
    assert found["MLA"] == pytest.approx(11 * 249.8e6, rel=2e-3)
    assert sum(found.values()) == pytest.approx(16.93e9, rel=1e-3)


def test_a_step_is_the_sum_of_its_parts() -> None:
    first = steps(Assumptions())[0]
    assert first.seconds == pytest.approx((sum(dense_bytes().values()) + 2.1257e9) / 273e9, rel=1e-3)
    assert first.tokens_per_second == pytest.approx(14.3, abs=0.05)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("experts", experts_table(Assumptions())),
        ("dense", dense_table()),
        ("steps", steps_table(Assumptions())),
    ],
)
def test_the_document_has_the_tables(name: str, lines: list[str]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = text.split(f"<!-- {name}: begin -->\n", 1)[1].split(f"<!-- {name}: end -->", 1)[0]
    assert found.splitlines() == lines


def test_the_document_states_every_assumption() -> None:
    text, assumed = DOCUMENT.read_text(encoding="utf-8"), Assumptions()
    rows = text.split("| assumed |", 1)[1].split("\n\n", 1)[0]
    for bandwidth in ("nominal", "copied", "bf16"):
        assert f"| {getattr(assumed, f'{bandwidth}_bytes_per_second') / 1e9:.0f} GB/s |" in rows
    assert f"{assumed.sms} SMs" in rows
    assert f"{assumed.clock_hertz / 1e9:.2f} GHz" in rows
    assert f"{assumed.instructions[2]} at K=2, {assumed.instructions[3]} at K=3" in rows
    fast, slow = assumed.mma_operations_per_second
    assert f"{fast / 1e12:.0f} TFLOP/s in fp16 with fp32 sums, or {slow / 1e12:.1f}" in rows
    assert f"{MOE_LAYERS} MoE layers" in rows
