"""Planned texts have exactly the positions asked for, and some are long."""

from __future__ import annotations

import pytest
from moa_bench.suites.engine.invariance.texts import LONG_TOKENS, LONGEST_PROMPT, plan_texts


class WordTokenizer:
    """A token a word."""

    chat_template = "one"

    def apply_chat_template(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        return f"user: {messages[0]['content']} assistant:"

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


@pytest.mark.parametrize("positions", [1, 40, 5000])
def test_texts_have_the_positions_asked_for(positions: int) -> None:
    questions = ["one two three " * 12, "why " * 120]
    planned = plan_texts(WordTokenizer(), questions, positions)  # type: ignore[arg-type]
    assert sum(text.positions for text in planned) == positions
    assert all(len(text.prompt) <= LONGEST_PROMPT for text in planned)
    assert any(len(text.prompt) >= LONG_TOKENS for text in planned) == (positions == 5000)
