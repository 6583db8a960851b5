"""Asking a running server all questions of the FAQ, many at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from glm53_exl3.demo.canary import Answer
from glm53_exl3.demo.faq import SERVED_NAME, load_faq
from glm53_exl3.serve.chat import openai_client, stream_answer

AT_ONCE = 16
QUESTIONS = tuple(entry.question for entry in load_faq())


def ask_streaming(url: str, question: str) -> Answer:
    """The streamed answer."""
    pieces = list(stream_answer(openai_client(url), SERVED_NAME, question))
    return Answer(question, "".join(p.text for p in pieces), sum(p.logprob for p in pieces))


def ask_whole(url: str, question: str) -> Answer:
    """The answer in one piece."""
    choice = (
        openai_client(url)
        .chat.completions.create(
            model=SERVED_NAME, messages=[{"role": "user", "content": question}], temperature=0, logprobs=True
        )
        .choices[0]
    )
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert choice.finish_reason == "stop"
    return Answer(question, choice.message.content or "", sum(token.logprob for token in choice.logprobs.content))


def long_stream(client: OpenAI, question: str) -> Stream[ChatCompletionChunk]:
    """An answer that goes on after its end, for half a minute and more."""
    return client.chat.completions.create(
        model=SERVED_NAME,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
        max_tokens=128,
    )


def ask_all(url: str, *, streaming: bool) -> list[Answer]:
    """All questions, 16 at a time."""
    ask = ask_streaming if streaming else ask_whole
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda question: ask(url, question), QUESTIONS))
