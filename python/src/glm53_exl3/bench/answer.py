"""A streamed answer as it comes in: what was said, when, and how many tokens that was.

Tokens are counted by the server (`stream_options.include_usage`): an event may carry several, as with speculation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal

#: How a request ended. Every one but the first two is a failure:
#: `refused`: nothing listens; `unreachable`: no connection for another reason; `timeout`: not done in time;
#: `rate-limited`: status 429; `rejected`: another 4xx; `server-error`: any other status; `stream-error`: the server
#: reported an error within its answer; `broken`: the connection ended before the answer did; `malformed`: an event
#: that is not JSON or no answer; `no-text`: an answer of nothing; `no-usage`: tokens were not counted.
Outcome = Literal[
    "answered",
    "left",
    "refused",
    "unreachable",
    "timeout",
    "rate-limited",
    "rejected",
    "server-error",
    "stream-error",
    "broken",
    "malformed",
    "no-text",
    "no-usage",
]
#: `left`: the client went away on purpose.
NO_FAILURE: Final = frozenset({"answered", "left"})
#: Parts of a delta that hold what the model says. vLLM calls its reasoning `reasoning`, older versions and other
#: servers `reasoning_content`.
_REASONING: Final = ("reasoning", "reasoning_content")


@dataclass(frozen=True)
class Exchange:
    """One request and its answer. Times count from before the connection was opened.

    Attributes:
        outcome: how it ended.
        detail: what the server or the system said of a failure.
        seconds: until it ended.
        first_seconds: until the first event with text, reasoning included; None when there was none.
        last_seconds: until the last event of the answer; None when there was none.
        longest_gap_seconds: longest time between two events; None with fewer than two.
        prompt_tokens: by the server's count; None without one.
        completion_tokens: by the server's count, the one that ends the answer included; None without one.
        cached_tokens: those of the prompt that the server had kept; None when it does not say.
        text: the answer.
        reasoning: what came before it.
    """

    outcome: Outcome
    detail: str
    seconds: float
    first_seconds: float | None = None
    last_seconds: float | None = None
    longest_gap_seconds: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    text: str = ""
    reasoning: str = ""


class Ended(Exception):  # noqa: N818 - who leaves on purpose ends a request, too
    """A request ended before its answer did."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome: Outcome = outcome
        self.detail = detail
        super().__init__(detail)


def error_message(reported: Any) -> str:
    """What OpenAI's error object says, wherever it stands."""
    if isinstance(reported, dict) and "error" in reported:
        reported = reported["error"]
    if isinstance(reported, dict):
        reported = reported.get("message", reported.get("detail", ""))
    return reported if isinstance(reported, str) else ""


@dataclass
class Answer:
    """An answer as it comes in. Times are of one clock, in seconds.

    Attributes:
        started: before the connection was opened.
        num_events: events with text so far.
        first: when the first of them came.
        last: when the last one came.
        longest_gap: longest time between two.
        usage: the server's count.
        text: pieces of the answer.
        reasoning: pieces of what came before it.
    """

    started: float
    num_events: int = 0
    first: float | None = None
    last: float | None = None
    longest_gap: float | None = None
    usage: dict[str, Any] | None = None
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)

    def take(self, data: bytes, now: float) -> None:
        """Take in one event that arrived at `now`.

        Raises:
            Ended: the event reports an error, or is no part of an answer.
        """
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise Ended("stream-error", error_message(chunk) or data.decode(errors="replace"))
            if isinstance(chunk.get("usage"), dict):
                self.usage = chunk["usage"]
            for choice in chunk.get("choices") or ():
                self._take_choice(choice, now)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise Ended("malformed", f"an event that is no part of an answer: {data[:80]!r}") from error

    def _take_choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        reasoning = next((delta[name] for name in _REASONING if delta.get(name)), "")
        # A TypeError for what is no text.
        self.text.append("" + text)
        self.reasoning.append("" + reasoning)
        if text or reasoning or delta.get("tool_calls"):
            self.num_events += 1
            if self.last is not None:
                self.longest_gap = max(self.longest_gap or 0.0, now - self.last)
            self.first = now if self.first is None else self.first
            self.last = now
        elif choice.get("finish_reason") and self.first is not None:
            # The token that ends an answer has no text.
            self.last = now

    def judge(self) -> Outcome:
        """How a request ended whose stream is complete."""
        if self.first is None:
            return "no-text"
        return "answered" if self._count("prompt_tokens") and self._count("completion_tokens") else "no-usage"

    def exchange(self, outcome: Outcome, detail: str, seconds: float) -> Exchange:
        """The request as a whole, after `seconds`."""
        return Exchange(
            outcome=outcome,
            detail=detail,
            seconds=seconds,
            first_seconds=None if self.first is None else self.first - self.started,
            last_seconds=None if self.last is None else self.last - self.started,
            longest_gap_seconds=self.longest_gap,
            prompt_tokens=self._count("prompt_tokens"),
            completion_tokens=self._count("completion_tokens"),
            cached_tokens=self._cached(),
            text="".join(self.text),
            reasoning="".join(self.reasoning),
        )

    def _count(self, name: str) -> int | None:
        value = (self.usage or {}).get(name)
        return value if type(value) is int and value >= 0 else None

    def _cached(self) -> int | None:
        details = (self.usage or {}).get("prompt_tokens_details")
        value = details.get("cached_tokens") if isinstance(details, dict) else None
        return value if type(value) is int and value >= 0 else None
