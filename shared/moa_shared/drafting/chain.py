"""A chain of guesses: each the drafter's own coupled choice, or a likelier copy from the conversation."""

from __future__ import annotations

import numpy as np

from moa_shared.drafting.base import Drafter
from moa_shared.drafting.copying import CopyGuesser
from moa_shared.sampling.coupling import Sampling, draft_scores
from moa_shared.tree.draft_tree import DraftTree


def draft_chain(drafter: Drafter, length: int, sampling: Sampling, copies: CopyGuesser | None = None) -> DraftTree:
    """`length` tokens below the newest committed one.

    Args:
        copies: of the same conversation (not in the paper).
    """
    tokens: list[int] = []
    logits = drafter.begin() if length else np.empty((1, 0), dtype=np.float32)
    for step in range(length):
        scores = draft_scores(logits, [drafter.next_position + step], sampling, drafter.token_ids)
        column = int(scores.argmax())
        guess = copies.guess(tokens) if copies is not None else None
        if guess is not None and guess[1] > float(scores[0, column]):
            tokens.append(guess[0])
        else:
            tokens.append(column if drafter.token_ids is None else int(drafter.token_ids[column]))
        if step + 1 < length:
            logits = drafter.expand([tokens[-1]], [step - 1])
    return DraftTree.chain(tokens)
