"""The request that decides whether a server that has started computes anything sensible.

A pack with a `canary.json` states its answers and their log-probabilities. Any other model continues a sentence, and
what comes is judged by what broken kernels are known to give: NaN, one token over and over, noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from glm53_exl3.demo.canary import CANARY_FILE, Answer, load_canary
from glm53_exl3.errors import CanaryError, ServerError
from glm53_exl3.serve.chat import openai_client, stream_answer

if TYPE_CHECKING:
    from openai.types import Completion

_PROMPT: Final = "One, two, three, four, five, six, seven, eight, nine, ten. The capital of France is"
_TOKENS: Final = 32
#: Questions of a `canary.json` that are asked.
_QUESTIONS: Final = 3
#: Any model gives its own greedy tokens a mean well above this; noise over 154,880 tokens has -11.9.
_LEAST_MEAN_LOGPROB: Final = -5.0
#: A sentence does not repeat one token so often in a row.
_LONGEST_RUN: Final = 8
_HINT: Final = (
    "glm53-exl3 verify PACK --hash; if the pack is sound, report the runtime: glm53-exl3 preflight --json PACK"
)


@dataclass(frozen=True)
class Continuation:
    """What a model said.

    Attributes:
        text: the words.
        tokens: its tokens as text.
        logprobs: natural logarithm of each token's probability; None where the server gave none.
    """

    text: str
    tokens: Sequence[str]
    logprobs: Sequence[float | None]


def judge(said: Continuation) -> str | None:
    """Why a greedy continuation cannot come from a sound model, or None."""
    if not said.tokens:
        return "it said nothing"
    if any(logprob is None or not math.isfinite(logprob) for logprob in said.logprobs):
        return "a log-probability is not a finite number"
    token, run = max(((key, len(list(group))) for key, group in groupby(said.tokens)), key=lambda pair: pair[1])
    if run >= _LONGEST_RUN:
        return f"it said {token!r} {run} times in a row"
    mean = sum(logprob or 0.0 for logprob in said.logprobs) / len(said.tokens)
    if mean < _LEAST_MEAN_LOGPROB:
        return f"its own words are improbable to it: mean log-probability {mean:.2f}"
    return None


def run_canary(url: str, model: str, pack: Path, api_key: str | None = None) -> str:
    """Ask the server at `url`; returns one line on what it answered.

    Raises:
        CanaryError: `canary-wrong` or `canary-insane`.
        ServerError: `chat-failed`, the server refused or broke off.
    """
    if (pack / CANARY_FILE).exists():
        return _expected_answers(url, model, pack, api_key)
    said = _continue(url, model, api_key)
    fault = judge(said)
    if fault is not None:
        raise CanaryError(
            "canary-insane",
            f"the model's first answer is not sane: {fault}",
            found=repr(said.text[:80]),
            hint=_HINT,
        )
    return f"it continues {_PROMPT[-24:]!r} with {said.text[:40]!r}"


def ask_one_token(url: str, model: str, api_key: str | None = None) -> str:
    """Ask for one token, to see that an engine that seems idle lives; waits as long as it takes.

    Raises:
        ServerError: `chat-failed`, the server refused or broke off.
    """
    from openai import OpenAIError

    try:
        openai_client(url, api_key, None).completions.create(model=model, prompt="1", max_tokens=1)
    except OpenAIError as error:
        raise ServerError(
            "chat-failed", f"the server did not answer: {error}", hint="look at the log of the server"
        ) from error
    return "one token"


def _expected_answers(url: str, model: str, pack: Path, api_key: str | None) -> str:
    canary = load_canary(pack)
    client = openai_client(url, api_key, None)
    given: list[Answer] = []
    for right in canary.answers[:_QUESTIONS]:
        pieces = list(stream_answer(client, model, right.question))
        text = "".join(piece.text for piece in pieces)
        given.append(Answer(right.question, text, sum(piece.logprob for piece in pieces)))
    wrong = canary.failures(given)
    if wrong:
        raise CanaryError(
            "canary-wrong", f"the pack did not give the answers of its {CANARY_FILE}: {wrong[0]}", hint=_HINT
        )
    return f"{len(given)} answers of its {CANARY_FILE} are right"


def _continue(url: str, model: str, api_key: str | None) -> Continuation:
    from openai import OpenAIError

    try:
        # The phase has a limit of its own.
        answer: Completion = openai_client(url, api_key, None).completions.create(
            model=model, prompt=_PROMPT, max_tokens=_TOKENS, temperature=0.0, logprobs=1
        )
    except (OpenAIError, ValueError) as error:
        # vLLM cannot write NaN as JSON, so a broken model shows as a refused request.
        raise CanaryError(
            "canary-insane", f"the model's first request failed: {str(error)[:300]}", hint=_HINT
        ) from error
    choice = answer.choices[0]
    found = choice.logprobs
    return Continuation(choice.text, (found and found.tokens) or [], (found and found.token_logprobs) or [])
