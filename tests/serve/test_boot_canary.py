"""What counts as a sane first answer."""

from __future__ import annotations

import math

import pytest

from glm53_exl3.serve.boot_canary import Continuation, judge


def said(tokens: list[str], logprob: float | None = -0.3) -> Continuation:
    return Continuation("".join(tokens), tokens, [logprob] * len(tokens))


SENTENCE = [" Paris", ".", " The", " capital", " of", " Italy", " is", " Rome", ".", " The", " capital", " of"]


def test_a_sentence_is_sane() -> None:
    assert judge(said(SENTENCE)) is None


def test_an_early_end_is_sane_but_silence_is_not() -> None:
    assert judge(said([" Paris"])) is None
    assert judge(said([])) == "it said nothing"


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf, None])
def test_nan_is_not_sane(logprob: float | None) -> None:
    assert judge(said(SENTENCE, logprob)) == "a log-probability is not a finite number"


def test_one_token_over_and_over_is_not_sane() -> None:
    assert judge(said([" Paris", *["!"] * 8])) == "it said '!' 8 times in a row"
    assert judge(said([" Paris", *["!"] * 7])) is None


def test_noise_is_not_sane() -> None:
    fault = judge(said(SENTENCE, -11.9))
    assert fault is not None
    assert "mean log-probability -11.90" in fault
