"""When two receipts may be compared, and what is concluded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from glm53_exl3.bench.compare import (
    Difference,
    Verdict,
    differences,
    equal_outputs,
    judge,
    require_comparable,
    unknown_conditions,
)
from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.load import Level
from glm53_exl3.bench.receipt import SECTIONS, Receipt
from support.receipts import CONDITIONS, changed, level, receipt, sample


def leaves(tree: dict[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        found += leaves(value, f"{key}.") if isinstance(value, dict) and value else [key]
    return found


@pytest.mark.parametrize("key", leaves(CONDITIONS))
def test_each_condition_that_differs_is_refused_by_name_with_both_values(key: str) -> None:
    other = receipt(conditions=changed(**{key.replace(".", "__"): "another"}))
    with pytest.raises(BenchError, match="conditions-differ") as caught:
        require_comparable(receipt(), other, [])
    line = caught.value.found.strip()
    assert line.startswith(f"{key}: ")
    assert line.endswith(" and another")
    assert caught.value.hint.endswith(f"--allow {key}")
    assert [each.key for each in require_comparable(receipt(), other, [key])] == [key]


def test_all_differences_are_named_at_once() -> None:
    other = receipt(conditions=changed(server__model="x", machine__cores=2, client__seed=1))
    with pytest.raises(BenchError) as caught:
        require_comparable(receipt(), other, [])
    assert caught.value.found.splitlines()[1:] == [
        "    client.seed: 0 and 1",
        "    machine.cores: 20 and 2",
        "    server.model: GLM-5.3-Flash-EXL3 and x",
    ]
    assert caught.value.what.endswith("3 differ")


def test_what_was_not_allowed_is_still_refused() -> None:
    other = receipt(conditions=changed(server__model="x", machine__cores=2))
    with pytest.raises(BenchError) as caught:
        require_comparable(receipt(), other, ["server.model"])
    assert caught.value.found.strip() == "machine.cores: 20 and 2"


def test_a_flag_of_only_one_is_a_difference() -> None:
    flags = {**CONDITIONS["server"]["flags"], "--speculative-config": '{"method": "mtp"}'}
    other = receipt(conditions=changed(server__flags=flags))
    allowed = require_comparable(receipt(), other, ["server.flags.--speculative-config"])
    assert allowed == [Difference("server.flags.--speculative-config", "(not there)", '{"method": "mtp"}')]


def test_a_group_can_be_allowed() -> None:
    other = receipt(conditions=changed(pack__commit="9" * 40, pack__repository="owner/other"))
    allowed = require_comparable(receipt(), other, ["pack"])
    assert [each.key for each in allowed] == ["pack.commit", "pack.repository"]


def test_a_misspelt_condition_is_refused_with_the_nearest() -> None:
    with pytest.raises(BenchError, match="condition-unknown") as caught:
        require_comparable(receipt(), receipt(), ["server.flag.--max-num-seqs"])
    assert caught.value.hint == "--allow server.flags.--max-num-seqs"


def test_a_prefix_of_a_name_is_no_group() -> None:
    with pytest.raises(BenchError, match="condition-unknown"):
        require_comparable(receipt(), receipt(conditions=changed(server__model="x")), ["server.mod"])


def test_unknown_in_one_is_a_difference_and_in_both_is_said() -> None:
    unknown = receipt(conditions=changed(server__flags=None, pack__commit=None))
    with pytest.raises(BenchError) as caught:
        require_comparable(receipt(), unknown, [])
    assert "pack.commit: " + "1" * 40 + " and (not known)" in caught.value.found
    assert "server.flags: " in caught.value.found
    assert require_comparable(unknown, unknown, []) == []
    assert unknown_conditions(unknown, unknown) == ["server.flags", "pack.commit"]
    assert unknown_conditions(receipt(), unknown) == []


def test_numbers_of_other_types_differ() -> None:
    assert differences({"a": 1}, {"a": True}) == [Difference("a", "1", "true")]
    assert differences({"a": [1, 2]}, {"a": [1, 2]}) == []


def verdicts(first: Receipt, second: Receipt, threshold: float = 5.0) -> dict[str, Verdict]:
    return {verdict.figure: verdict for verdict in judge(first, second, threshold)}


def steady(value: float) -> list[float]:
    """Seven runs within one percent."""
    return [value * (1 + 0.01 * step / 3) for step in range(-3, 4)]


def wide(value: float) -> list[float]:
    """Seven runs up to 30 percent from their median."""
    return [value * (1 + 0.1 * step) for step in range(-3, 4)]


@pytest.mark.parametrize(
    ("first", "second", "verdict", "reason"),
    [
        (steady(0.5), steady(0.5), "PASS", ""),
        (steady(0.5), steady(0.52), "PASS", ""),
        (steady(0.5), steady(0.4), "PASS", ""),
        (steady(0.5), steady(0.55), "FAIL", "10.0% worse"),
        (wide(0.5), wide(0.55), "INCONCLUSIVE", "10.0% worse, but the spreads overlap"),
        (wide(0.5), wide(0.5), "INCONCLUSIVE", "spreads of 24.0% to a side would hide 5.0%"),
        (wide(0.5), wide(0.2), "PASS", ""),
        (wide(0.2), wide(0.5), "FAIL", "150.0% worse"),
    ],
)
def test_verdict_on_the_time_to_the_first_token(
    first: list[float], second: list[float], verdict: str, reason: str
) -> None:
    found = verdicts(receipt(level(firsts=first)), receipt(level(firsts=second)))["first_token_seconds"]
    assert (found.verdict, found.reason) == (verdict, reason)
    assert found.ratio == pytest.approx(second[3] / first[3])


def test_a_lower_rate_is_worse_and_a_higher_one_is_not() -> None:
    slow, fast = receipt(level(spacings=steady(0.10))), receipt(level(spacings=steady(0.05)))
    worse, better = verdicts(fast, slow), verdicts(slow, fast)
    assert worse["total_tokens_per_second"].verdict == "FAIL"
    assert worse["total_tokens_per_second"].ratio == pytest.approx(1.0 / 1.5)
    assert worse["inter_token_seconds"].verdict == "FAIL"
    assert worse["first_token_seconds"].verdict == "PASS"
    assert {each.verdict for each in better.values()} == {"PASS"}


def test_the_threshold_decides() -> None:
    first, second = receipt(level(firsts=steady(0.5))), receipt(level(firsts=steady(0.55)))
    assert verdicts(first, second, 11)["first_token_seconds"].verdict == "PASS"
    assert verdicts(first, second, 9)["first_token_seconds"].verdict == "FAIL"


def test_a_level_of_only_one_is_not_tested() -> None:
    found = judge(receipt(level(1), level(2)), receipt(level(1), level(4)), 5.0)
    outside = [(each.concurrency, each.verdict, each.reason) for each in found if each.figure == "level"]
    assert outside == [(2, "NOT TESTED", "only in the first receipt"), (4, "NOT TESTED", "only in the second receipt")]
    assert {each.verdict for each in found if each.concurrency == 1} == {"PASS"}


def test_too_few_runs_or_warm_ups_conclude_nothing() -> None:
    few = receipt(level(firsts=[0.5] * 6))
    assert verdicts(few, receipt())["first_token_seconds"].reason == "6 runs, 7 are wanted"
    cold = receipt(conditions=changed(client__warm_up_runs=1))
    found = verdicts(cold, cold)
    assert {(each.verdict, each.reason) for each in found.values()} == {
        ("INCONCLUSIVE", "1 warm-up runs, 2 are wanted")
    }


def _with_failure(concurrency: int) -> Level:
    good = level(concurrency)
    return replace(good, samples=(*good.samples[:-1], sample(6, 99, outcome="server-error")))


def test_requests_that_fail_only_in_the_second_are_a_fail() -> None:
    found = judge(receipt(level(4)), receipt(_with_failure(4)), 5.0)
    assert [(each.figure, each.verdict, each.reason) for each in found] == [
        ("level", "FAIL", "the second: 1 of 28 requests failed")
    ]


def test_requests_that_fail_in_the_first_conclude_nothing() -> None:
    for second in (level(4), _with_failure(4)):
        found = judge(receipt(_with_failure(4)), receipt(second), 5.0)
        assert {(each.verdict, each.reason) for each in found} == {
            ("INCONCLUSIVE", "the first: 1 of 28 requests failed")
        }


def test_a_level_without_figures_is_not_tested() -> None:
    left = level(outcome="left")
    found = judge(receipt(left), receipt(left), 5.0)
    assert {(each.verdict, each.reason) for each in found} == {("NOT TESTED", "no value")}


def test_answers_that_are_not_equal_are_counted() -> None:
    first = level(2)
    other = replace(first.samples[0], output_sha256="5" * 64)
    second = replace(first, samples=(other, *first.samples[1:]))
    assert equal_outputs(receipt(first), receipt(second, level(8))) == {2: (13, 14)}


def test_conditions_of_this_test_are_all_sections() -> None:
    assert set(CONDITIONS) == set(SECTIONS)
