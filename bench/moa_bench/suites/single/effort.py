"""How much `moa-bench single` measures, and how large drafts are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SingleEffort:
    """How much to measure.

    The drafts' sizes are those with which `moa-train evaluate` compares drafters; none was chosen by these figures.

    Args:
        questions: of each category.
        answer_tokens: of an answer at most; it ends where the target ends it.
        shortest_answer: questions with shorter answers are left out of the figures: their time is the first token's.
        longest_prompt: questions with more tokens are not asked.
        chain: nodes of a chain; `copies`: of one that prompt look-up copies.
        depth, breadth, nodes: of a tree.
    """

    questions: int = 1
    answer_tokens: int = 96
    shortest_answer: int = 16
    longest_prompt: int = 600
    chain: int = 5
    copies: int = 10
    depth: int = 5
    breadth: int = 6
    nodes: int = 24


QUICK = SingleEffort(1, 16, 4, 300)
