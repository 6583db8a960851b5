"""What is asked: generated prompts of a wanted length, or questions of a file."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from glm53_exl3.bench.errors import BenchError

#: Of one length, so that prompts of as many words have nearly as many tokens with any tokenizer, one of bytes included.
_WORD_LIST: Final = (
    "area army away back ball band bank base bear best bird blue boat body book born both burn call calm card care "
    "case city coal coat cold cook corn cost crop dark date dead deep door down draw drop dust duty each east easy "
    "edge even ever face fact fair fall farm fear feel feet fill film find fire fish five flat flow food foot form "
    "four free full game gave girl give glad gold gone good grew grow hair half hall hand hard harm hear heat held "
    "help here high hill hold hole home hope hour iron jump just keep kept kind king knew know lady lake land last "
    "late lead left less life lift line list live long look lord lose lost love made mail main make mark mass meal "
    "mean meat meet mile milk mind mine moon more most move much must name near neck need nine"
)
_WORDS: Final = tuple(_WORD_LIST.split())
_SHOWN: Final = 32
#: Words of the two requests that tell how many tokens a word has.
PROBE_WORDS: Final = (1, 16)
_MOST_QUESTIONS_BYTES: Final = 1 << 26


class Prompts(Protocol):
    """Something to ask."""

    def text(self, concurrency: int, number: int) -> str:
        """The prompt of request `number` at a level; the same for the same arguments, always."""

    def digest(self) -> str:
        """SHA-256 over what decides all prompts, 64 hexadecimal digits."""


@dataclass(frozen=True)
class GeneratedPrompts:
    """Prompts of random words. No two begin alike for as long as a block of the KV cache, so none is cached.

    Attributes:
        num_words: words of each.
        seed: of the random words.
    """

    num_words: int
    seed: int

    def text(self, concurrency: int, number: int) -> str:
        """The prompt of request `number` at a level."""
        drawn = random.Random(f"{self.seed}/{concurrency}/{number}")
        return " ".join(drawn.choices(_WORDS, k=self.num_words))

    def digest(self) -> str:
        """SHA-256 over the first prompts, 64 hexadecimal digits."""
        return _digest([self.text(1, number) for number in range(_SHOWN)])


@dataclass(frozen=True)
class Questions:
    """Questions of a file, asked in its order and again from its start.

    Attributes:
        questions: at least one.
    """

    questions: tuple[str, ...]

    def text(self, concurrency: int, number: int) -> str:
        """The question of request `number`."""
        return self.questions[number % len(self.questions)]

    def digest(self) -> str:
        """SHA-256 over all questions, 64 hexadecimal digits."""
        return _digest(list(self.questions))


def _digest(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts, ensure_ascii=False).encode()).hexdigest()


def read_questions(path: Path) -> Questions:
    """Questions of a text file, one a line; empty lines do not count.

    Raises:
        BenchError: `questions-file`.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_QUESTIONS_BYTES + 1)
        lines = [line.strip() for line in raw.decode("utf-8").splitlines()]
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unusable(path, "bytes that are not UTF-8") from error
    questions = tuple(line for line in lines if line)
    if len(raw) > _MOST_QUESTIONS_BYTES:
        raise _unusable(path, f"more than {_MOST_QUESTIONS_BYTES >> 20} MiB")
    if not questions:
        raise _unusable(path, "no question")
    return Questions(questions)


def _unusable(path: Path, found: str) -> BenchError:
    return BenchError(
        "questions-file",
        f"questions cannot be read from {path}",
        expected="a text file in UTF-8 with a question on each line",
        found=found,
        hint=f"echo 'What is EXL3?' > {path}",
    )


def words_for(num_tokens: int, count_tokens: Callable[[int], int]) -> int:
    """Words of a prompt that has about `num_tokens` tokens, those of the chat template included.

    Args:
        num_tokens: wanted.
        count_tokens: tokens of a prompt of so many words, by the server's count.

    Raises:
        BenchError: `prompt-tokens`: the template alone has more.
    """
    few, many = PROBE_WORDS
    least, more = count_tokens(few), count_tokens(many)
    tokens_a_word = max((more - least) / (many - few), 1 / many)
    if num_tokens < least:
        raise BenchError(
            "prompt-tokens",
            f"a prompt of {num_tokens} tokens is shorter than the chat template with one word",
            expected=f"at least {least}",
            hint=f"--prompt-tokens {least}",
        )
    return few + round((num_tokens - least) / tokens_a_word)


#: Keys of a request that this program sets itself.
_OWN_KEYS: Final = ("model", "messages", "stream", "stream_options", "n")


def read_extra_body(text: str) -> dict[str, Any]:
    """Further keys of each request, from JSON.

    Raises:
        BenchError: `extra-body`.
    """
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    own = [key for key in _OWN_KEYS if isinstance(body, dict) and key in body]
    if not isinstance(body, dict) or own:
        raise BenchError(
            "extra-body",
            f"--extra-body sets {', '.join(own)}, which is not its to set" if own else "--extra-body is no JSON object",
            expected="keys of a chat request that a server knows",
            found=text[:80],
            hint="""--extra-body '{"chat_template_kwargs": {"enable_thinking": false}}'""",
        )
    return body
