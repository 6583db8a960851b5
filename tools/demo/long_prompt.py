"""A prompt of any length from the FAQ, and how far log-probabilities of its tokens are from expected ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from glm53_exl3.demo.faq import load_faq
from train import sample

#: Every entry comes before any comes twice: 7 and the number of entries, 44, have no common factor.
_STRIDE = 7
#: Log-probabilities are kept of every such position; odd, so that all four places in a pool are seen.
SAMPLED = 7
#: Up to here the sparse attention reads everything, behind it the indexer chooses.
INDEX_TOPK = 2048


def long_prompt(num_tokens: int) -> list[int]:
    """Turns of the FAQ one after another, cut at that many tokens."""
    faq = load_faq()
    prompt: list[int] = []
    turn = 0
    while len(prompt) < num_tokens:
        entry = faq[turn * _STRIDE % len(faq)]
        item = sample(entry.question, entry.answer)
        prompt += [*item.prompt, *item.answer]
        turn += 1
    return prompt[:num_tokens]


def distances(given: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """Mean absolute difference, each counted as at most 1: where all is read, and where the indexer chooses.

    A mean, because a few tokens sit on the edge between two experts and jump by any amount under any rounding.

    Args:
        given: natural log-probabilities of the tokens at positions 1, 1 + SAMPLED, ...
        expected: the same of the reference.
    """
    apart = [min(1.0, abs(one - two)) for one, two in zip(given, expected, strict=True)]
    whole = len(range(1, INDEX_TOPK, SAMPLED))
    return fmean(apart[:whole]), fmean(apart[whole:])


def load_expected(path: Path) -> tuple[int, list[float], tuple[float, float]]:
    """Number of tokens of the prompt, expected log-probabilities, and the largest distances allowed."""
    stored = json.loads(path.read_text())
    first, second = stored["allowed"]
    return int(stored["num_tokens"]), [float(value) for value in stored["logprobs"]], (float(first), float(second))
