"""A chain of guesses: each the drafter's own coupled choice."""

from __future__ import annotations

import torch

from moa_shared.coupling import Sampling, draft_scores
from moa_shared.drafting.base import Drafter
from moa_shared.tree import DraftTree


def draft_chain(drafter: Drafter, length: int, sampling: Sampling) -> DraftTree:
    """`length` tokens below the newest committed one."""
    tokens: list[int] = []
    logits = drafter.begin() if length else torch.empty(0)
    for step in range(length):
        scores = draft_scores(logits, [drafter.next_position + step], sampling, drafter.token_ids)
        column = scores.argmax(dim=-1)
        tokens.append(int(column if drafter.token_ids is None else drafter.token_ids[column]))
        if step + 1 < length:
            logits = drafter.expand([tokens[-1]], [step - 1])
    return DraftTree.chain(tokens)
