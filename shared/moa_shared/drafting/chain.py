"""A chain of guesses: each the drafter's own coupled choice, or a likelier guess from the text."""

from __future__ import annotations

import numpy as np

from moa_shared.drafting.base import Drafter
from moa_shared.drafting.guesses.text_guesser import TextGuesser
from moa_shared.sampling.coupling import draft_scores
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree


def draft_chain(drafter: Drafter, length: int, sampling: Sampling, guesser: TextGuesser | None = None) -> DraftTree:
    """`length` tokens below the newest committed one, or as many as the drafter guesses.

    Args:
        guesser: of the same conversation (not in the paper).
    """
    tokens: list[int] = []
    length = min(length, drafter.most_depth or length)
    logits = drafter.begin() if length else np.empty((1, 0), dtype=np.float32)
    for step in range(length):
        before = TextBefore(drafter.tokens, [tokens]) if sampling.reads_text else None
        scores = draft_scores(logits, [drafter.next_position + step], sampling, drafter.token_ids, before)
        column = int(scores.argmax())
        guesses = guesser.guesses(tokens) if guesser is not None else []
        if guesses and guesses[0][1] > float(scores[0, column]):
            tokens.append(guesses[0][0])
        else:
            tokens.append(column if drafter.token_ids is None else int(drafter.token_ids[column]))
        if step + 1 < length:
            logits = drafter.expand([tokens[-1]], [step - 1])
    return DraftTree.chain(tokens)
