"""How much `moa-bench drafting` measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftingEffort:
    """How much to measure.

    Args:
        questions: that are asked.
        answer_tokens: of an answer at most; it ends where the target ends it.
        shortest_answer: questions with shorter answers are left out: their time is that of the first token.
        longest_prompt: so are those with more tokens: their time is that of reading.
        traffic_tokens: of an answer whose bytes are counted.
    """

    questions: int = 12
    answer_tokens: int = 100
    shortest_answer: int = 32
    longest_prompt: int = 600
    traffic_tokens: int = 128


QUICK = DraftingEffort(1, 16, 4, traffic_tokens=16)
