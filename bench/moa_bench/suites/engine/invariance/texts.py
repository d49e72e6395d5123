"""The texts of an invariance run: questions, short and long, and how much the target then writes itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.models.tokenizer.tokenizer import Tokenizer

from moa_bench.harness.prompts import chat_tokens

ANSWER_TOKENS = 128
LONG_EVERY = 4  # each fourth text is long: positions up to 1,200 are compared
LONG_TOKENS = 1000
LONGEST_PROMPT = 1200


@dataclass(frozen=True, slots=True)
class PlannedText:
    """A prompt, and how many tokens of the target's own are to follow it."""

    prompt: tuple[int, ...]
    answer_tokens: int

    @property
    def positions(self) -> int:
        return len(self.prompt) + self.answer_tokens


def plan_texts(tokenizer: Tokenizer, questions: Sequence[str], positions: int) -> list[PlannedText]:
    """Texts of so many positions in all, each question in turn; every fourth one asks many questions at once."""
    planned: list[PlannedText] = []
    left = positions
    while left > 0:
        number = len(planned)
        prompt = _prompt(tokenizer, questions, number)[: min(LONGEST_PROMPT, left)]
        answer = min(ANSWER_TOKENS, left - len(prompt))
        planned.append(PlannedText(tuple(prompt), answer))
        left -= planned[-1].positions
    return planned


def _prompt(tokenizer: Tokenizer, questions: Sequence[str], number: int) -> list[int]:
    prompt = chat_tokens(tokenizer, questions[number % len(questions)])
    if number % LONG_EVERY != LONG_EVERY - 1:
        return prompt
    asked = [questions[number % len(questions)]]
    while len(prompt) < LONG_TOKENS:
        asked.append(questions[(number + len(asked)) % len(questions)])
        prompt = chat_tokens(tokenizer, "\n".join(asked))
    return prompt
