"""Bounded blocks as the authors draw them, for tests that give their lengths."""

import torch
from moa_training.objective.blocks import Blocks


def build_blocks(inside: torch.Tensor, every: torch.Tensor | None, staircase: torch.Tensor) -> Blocks:
    """Masks of a batch.

    Args:
        inside: [batch, length] bool, tokens of answers; everywhere else each position starts a block.
        every: [batch] block length of each row: inside answers, index % every == 0 starts a block; None: an answer is
            one block.
        staircase: [batch] bool: rows whose self-attention sees only its own block after the start, and itself.
    """
    starts = ~inside
    if every is not None:
        starts = starts | (torch.arange(inside.shape[1])[None] % every[:, None] == 0)
    return Blocks.from_starts(starts, staircase)
