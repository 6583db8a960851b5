"""Medians and spreads, by hand and against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm53_exl3.bench.figures import (
    BY_REQUEST,
    TOTAL,
    Spread,
    inter_token_seconds,
    level_figures,
    median_by_run,
    prefill_tokens_per_second,
    spread,
    tokens_per_second,
    total_by_run,
)
from glm53_exl3.bench.load import Level, Sample

#: Six tokens: the first after 0.5 s, then one each 0.1 s.
SAMPLE = Sample(
    run=0,
    number=0,
    outcome="answered",
    detail="",
    started_seconds=0.0,
    seconds=1.0,
    first_seconds=0.5,
    last_seconds=1.0,
    longest_gap_seconds=0.125,
    prompt_tokens=100,
    completion_tokens=6,
    cached_tokens=None,
    output_sha256="0" * 64,
)


def test_spread_of_known_numbers() -> None:
    assert spread(range(1, 12)) == Spread(2, 6, 10, 11)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    assert spread([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_spread_is_that_of_numpy(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert [found.p10, found.p50, found.p90] == pytest.approx(list(np.quantile(values, [0.1, 0.5, 0.9])), abs=1e-6)


def test_rates_of_one_answer() -> None:
    assert inter_token_seconds(SAMPLE) == 0.1
    assert tokens_per_second(SAMPLE) == 10.0
    assert prefill_tokens_per_second(SAMPLE) == 200.0


def test_an_answer_of_one_token_has_no_rate() -> None:
    single = replace(SAMPLE, completion_tokens=1)
    assert (inter_token_seconds(single), tokens_per_second(single)) == (None, None)


def test_a_cached_prompt_has_no_prefill_rate() -> None:
    assert prefill_tokens_per_second(replace(SAMPLE, cached_tokens=64)) is None
    assert prefill_tokens_per_second(replace(SAMPLE, cached_tokens=0)) == 200.0


def test_total_rate_counts_from_the_first_start_to_the_last_end_of_each_run() -> None:
    level = Level(
        2,
        2,
        (
            SAMPLE,
            replace(SAMPLE, number=1, started_seconds=1.0, seconds=3.0),
            replace(SAMPLE, run=1, number=2, seconds=2.0),
            replace(SAMPLE, run=1, number=3),
        ),
    )
    assert total_by_run(level) == [12 / 4.0, 12 / 2.0]
    assert level_figures(level).spreads[TOTAL] == Spread(pytest.approx(3.3), 4.5, pytest.approx(5.7), 2)


def test_median_by_run_is_of_each_run() -> None:
    firsts = [(0, 0.1), (0, 0.2), (0, 0.9), (1, 0.4)]
    samples = tuple(replace(SAMPLE, run=run, number=n, first_seconds=value) for n, (run, value) in enumerate(firsts))
    assert median_by_run(Level(3, 3, samples), "first_token_seconds") == [0.2, 0.4]


def test_only_answers_make_figures_and_every_outcome_is_counted() -> None:
    failed = replace(SAMPLE, number=1, outcome="server-error", first_seconds=None, last_seconds=None)
    left = replace(SAMPLE, number=2, outcome="left", completion_tokens=None, first_seconds=9.0)
    found = level_figures(Level(3, 3, (SAMPLE, failed, left)))
    assert dict(found.outcomes) == {"answered": 1, "left": 1, "server-error": 1}
    assert (found.num_answered, found.num_failed) == (1, 1)
    assert found.spreads["first_token_seconds"] == Spread(0.5, 0.5, 0.5, 1)


def test_a_level_without_answers_has_no_figures() -> None:
    failed = replace(SAMPLE, outcome="timeout")
    found = level_figures(Level(1, 1, (failed,)))
    assert set(found.spreads) == {TOTAL, *BY_REQUEST}
    assert set(found.spreads.values()) == {None}
