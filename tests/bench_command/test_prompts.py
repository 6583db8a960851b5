"""What is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm53_exl3.bench.errors import BenchError
from glm53_exl3.bench.prompts import GeneratedPrompts, Questions, read_extra_body, read_questions, words_for


def test_generated_prompts_repeat_with_their_seed_and_with_nothing_else() -> None:
    prompts = GeneratedPrompts(20, seed=7)
    assert prompts.text(4, 3) == GeneratedPrompts(20, seed=7).text(4, 3)
    others = [prompts.text(level, number) for level in (1, 2, 4) for number in range(200)]
    others += [GeneratedPrompts(20, seed=8).text(4, 3)]
    assert len(set(others)) == len(others)


def test_generated_prompts_have_one_length() -> None:
    lengths = {len(GeneratedPrompts(50, 0).text(1, number)) for number in range(300)}
    assert lengths == {50 * len("word ") - 1}


def test_digest_depends_on_words_and_seed() -> None:
    digests = {GeneratedPrompts(words, seed).digest() for words in (5, 6) for seed in (0, 1)}
    assert len(digests) == 4
    assert GeneratedPrompts(5, 0).digest() in digests


def test_questions_are_the_lines_of_a_file_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("  What is suh?\n\nWas heißt svh?\r\n", encoding="utf-8")
    questions = read_questions(file)
    assert questions == Questions(("What is suh?", "Was heißt svh?"))
    assert [questions.text(8, number) for number in range(3)] == ["What is suh?", "Was heißt svh?", "What is suh?"]
    assert questions.digest() != Questions(("What is suh?",)).digest()


@pytest.mark.parametrize(
    ("content", "found"), [(None, "No such file"), (b"\n \n", "no question"), (b"\xff\xfe", "not UTF-8")]
)
def test_a_file_without_questions_is_refused(tmp_path: Path, content: bytes | None, found: str) -> None:
    file = tmp_path / "questions.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BenchError, match="questions-file") as caught:
        read_questions(file)
    assert found in caught.value.found


@pytest.mark.parametrize(("tokens", "words"), [(7, 1), (105, 50), (513, 254)])
def test_words_for_a_number_of_tokens(tokens: int, words: int) -> None:
    assert words_for(tokens, lambda count: 5 + 2 * count) == words


def test_a_prompt_shorter_than_the_template_is_refused() -> None:
    with pytest.raises(BenchError, match="prompt-tokens") as caught:
        words_for(6, lambda count: 5 + 2 * count)
    assert caught.value.hint == "--prompt-tokens 7"


def test_extra_body_is_a_json_object() -> None:
    assert read_extra_body('{"chat_template_kwargs": {"enable_thinking": false}}') == {
        "chat_template_kwargs": {"enable_thinking": False}
    }


@pytest.mark.parametrize("text", ["[]", "{", '{"messages": []}', '{"stream": false}', '{"model": "x"}', '{"n": 2}'])
def test_extra_body_does_not_set_what_the_program_sets(text: str) -> None:
    with pytest.raises(BenchError, match="extra-body"):
        read_extra_body(text)
