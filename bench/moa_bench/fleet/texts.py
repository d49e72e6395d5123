"""What the clients ask, and the texts that are due: each is written once before, undisturbed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.report.answers import PlainClient

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

TEMPERATURE, TOP_P = 0.8, 0.95  # of every second text
Question = tuple[Sequence[int], AnswerSettings]


def make_questions(tokenizer: Tokenizer, texts: int, answer_tokens: int) -> list[Question]:
    """So many, greedy and sampled in turn."""
    from moa_bench.harness.prompts import QUESTIONS, chat_tokens

    return [
        (chat_tokens(tokenizer, QUESTIONS[number % len(QUESTIONS)]), _settings(number, answer_tokens))
        for number in range(texts)
    ]


def _settings(number: int, tokens: int) -> AnswerSettings:
    """Of the text of that number."""
    sampling = Sampling(TEMPERATURE, 0, TOP_P, seed=number) if number % 2 else Sampling(seed=number)
    return AnswerSettings(sampling, max_tokens=tokens, ignore_end_of_text=True)


def write_texts(
    address: str, questions: Sequence[Question], on_text: Callable[[], None]
) -> tuple[list[tuple[int, ...]], float]:
    """Each text by plain streaming, and the median time from a question to its first token, in seconds."""
    plain, texts, firsts_s = PlainClient(address), list[tuple[int, ...]](), list[float]()
    try:
        for prompt, settings in questions:
            answer = plain.ask(prompt, settings)
            texts.append(answer.tokens)
            firsts_s.append(1e-3 * answer.first_ms)
            on_text()
    finally:
        plain.close()
    return texts, median(firsts_s)
