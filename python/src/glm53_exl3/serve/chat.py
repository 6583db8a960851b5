"""A chat with a running server through the OpenAI client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from glm53_exl3.errors import ServerError

if TYPE_CHECKING:
    from openai import OpenAI

#: The client insists on a key; a server on loopback asks for none.
_NO_KEY: Final = "none"
_REQUEST_SECONDS: Final = 120.0


def openai_client(url: str, api_key: str | None = None, timeout_seconds: float | None = _REQUEST_SECONDS) -> OpenAI:
    """A client of the server at `url`, for example `http://127.0.0.1:8000`; None waits for ever."""
    from openai import DefaultHttpxClient, OpenAI

    # A proxy of the environment must not be asked for a server on this machine.
    direct = DefaultHttpxClient(trust_env=False)
    return OpenAI(
        base_url=f"{url}/v1", api_key=api_key or _NO_KEY, timeout=timeout_seconds, max_retries=0, http_client=direct
    )


@dataclass(frozen=True)
class Piece:
    """Part of an answer.

    Attributes:
        text: what the model said.
        logprob: sum of the log-probabilities of its tokens.
    """

    text: str
    logprob: float


def stream_answer(client: OpenAI, model: str, question: str) -> Iterator[Piece]:
    """Pieces of the greedy answer to one question, as the server sends them.

    Raises:
        ServerError: `chat-failed`, the server refused or broke off.
    """
    from openai import OpenAIError

    try:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0.0,
            logprobs=True,
            stream=True,
        )
        for chunk in stream:
            for choice in chunk.choices:
                tokens = (choice.logprobs and choice.logprobs.content) or []
                yield Piece(choice.delta.content or "", sum(token.logprob for token in tokens))
    except OpenAIError as error:
        raise ServerError(
            "chat-failed", f"the server did not answer: {error}", hint="look at the log of the server"
        ) from error
