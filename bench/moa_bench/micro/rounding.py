"""How often rounding in bf16 makes a verification of many tokens choose otherwise than single steps would.

Teacher-forced: single steps write a text; then the same text is read again in blocks, and at each position the block's
choice is held against the single step's. In exact arithmetic all would be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from moa_server.target import Target


@dataclass(frozen=True, slots=True)
class Flips:
    """Positions at which the choice differs.

    Args:
        shape: of the verification: "chain" or "tree".
        tokens: fed at once, wrong siblings of a tree among them.
        stride: text tokens confirmed by each verification.
        near_ties: of the flipped positions, those where the single step's two best logits were within one bf16 step.
    """

    shape: str
    tokens: int
    stride: int
    positions: int
    flipped: int
    near_ties: int

    @property
    def share(self) -> float:
        return self.flipped / self.positions


@dataclass(frozen=True, slots=True)
class _Text:
    tokens: list[int]  # prompt and answer
    answer_start: int
    margins: list[float]  # of each answer token: best logit minus second best, in bf16 steps of the best


def count_flips(target: Target, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Flips]:
    """Chains of 8 and 62, and trees of 62 tokens that hold 8 text tokens, over the answers to `prompts`."""
    texts = [_write(target, prompt, new_tokens) for prompt in prompts]
    return [_count(target, texts, shape, tokens, stride) for shape, tokens, stride in _SHAPES]


_SHAPES = (("chain", 8, 8), ("chain", 62, 62), ("tree", 62, 8))


def _write(target: Target, prompt: Sequence[int], new_tokens: int) -> _Text:
    """The greedy text of single steps."""
    cache = target.new_cache()
    tokens = list(prompt)
    logits = target.prefill(cache, tokens).logits[-1]
    margins = []
    for _ in range(new_tokens):
        second, best = np.partition(logits, -2)[-2:].tolist()
        margins.append((best - second) / max(2.0**-8 * abs(best), 1e-9))  # bf16 has 8 bits of mantissa
        tokens.append(int(logits.argmax()))
        logits = target.forward(cache, tokens[-1:]).logits[-1]
    return _Text(tokens, len(prompt), margins)


def _count(target: Target, texts: Sequence[_Text], shape: str, tokens: int, stride: int) -> Flips:
    positions = flipped = near_ties = 0
    for text in texts:
        cache = target.new_cache()
        target.prefill(cache, text.tokens[: text.answer_start - 1])
        for start in range(text.answer_start - 1, len(text.tokens) - 1, stride):
            fed = text.tokens[start : start + stride]
            expected = text.tokens[start + 1 : start + 1 + stride]
            siblings = tokens - stride  # wrong ones, below the text's own nodes in turn
            parents = [*range(-1, len(fed) - 1), *(node % len(fed) for node in range(siblings))]
            wrong = [(token + 1) % target.vocab_size for token in range(siblings)]
            rows = range(len(expected))
            chosen = target.forward(cache, fed + wrong, parents, rows).logits.argmax(-1).tolist()
            cache.keep(range(len(fed)))
            for place, (got, single) in enumerate(zip(chosen, expected, strict=True)):
                positions += 1
                if got != single:
                    flipped += 1
                    near_ties += text.margins[start + 1 + place - text.answer_start] <= 1.0
    return Flips(shape, tokens, stride, positions, flipped, near_ties)
