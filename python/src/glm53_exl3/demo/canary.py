"""The canary: answers that tell whether a runtime computes what it should.

A small model can give the right words from attention alone, so words are not enough: the sum of the answer's token
log-probabilities must also match what a float32 reference computed for the very pack, within a tolerance of twice
the largest difference seen between that reference and vLLM (docs/canary.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from glm53_exl3.errors import PackError

#: File of a pack that holds its canary.
CANARY_FILE: Final = "canary.json"


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        question: what was asked.
        answer: the greedy answer.
        logprob: natural logarithm of its probability, summed over its tokens and the one that ends it.
    """

    question: str
    answer: str
    logprob: float


@dataclass(frozen=True)
class Canary:
    """What a pack answers when everything is right.

    Attributes:
        tolerance: largest difference of `logprob` that is still right.
        answers: by question, in order.
    """

    tolerance: float
    answers: tuple[Answer, ...]

    def failures(self, given: Iterable[Answer]) -> list[str]:
        """One sentence for each given answer that is not the expected one."""
        expected = {answer.question: answer for answer in self.answers}
        found: list[str] = []
        for answer in given:
            right = expected[answer.question]
            difference = answer.logprob - right.logprob
            if answer.answer != right.answer:
                found.append(f"{answer.question!r}: {answer.answer!r} instead of {right.answer!r}")
            # Written so that NaN fails.
            elif not abs(difference) <= self.tolerance:
                found.append(
                    f"{answer.question!r}: log-probability {answer.logprob:.4f} instead of {right.logprob:.4f} "
                    f"(tolerance {self.tolerance:.4f})"
                )
        return found

    def expected(self, question: str) -> Answer | None:
        """The right answer to a question, or None when the canary does not know it."""
        return next((answer for answer in self.answers if answer.question == question), None)

    def save(self, pack: Path) -> None:
        """Write the canary into a pack."""
        text = json.dumps(
            {"tolerance": self.tolerance, "answers": [asdict(answer) for answer in self.answers]}, indent=1
        )
        (pack / CANARY_FILE).write_text(text + "\n", encoding="utf-8")


def load_canary(pack: Path) -> Canary:
    """The canary of a pack.

    Raises:
        PackError: `canary-missing`.
    """
    path = pack / CANARY_FILE
    if not path.exists():
        raise PackError(
            "canary-missing",
            f"{pack} has no {CANARY_FILE}",
            hint="use the demo pack of this installation",
        )
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Canary(float(stored["tolerance"]), tuple(Answer(**answer) for answer in stored["answers"]))
