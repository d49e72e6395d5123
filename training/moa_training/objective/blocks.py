"""Bounded blocks and the masks that follow from them (arXiv 2410.03804, training; REFERENCE of the published code).

A block starts where the drafter last had memory: position i sees the memory rows up to its block's start s(i). Outside
answers s(i) = i. Pure functions of lengths and draws; the caller draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moa_training.objective.row_share import WHOLE, RowShare


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where blocks start, and what may be seen.

    Args:
        start: [batch, length], s(i).
        self_visible: [batch, length, length] bool, self-attention.
        memory_visible: [batch, length, length] bool, cross-attention over memory rows.
    """

    start: torch.Tensor
    self_visible: torch.Tensor
    memory_visible: torch.Tensor

    @property
    def behind(self) -> torch.Tensor:
        """[batch, length, length] bool: who sees what of its own block, after the block's start."""
        positions = torch.arange(self.start.shape[1], device=self.start.device)
        return (positions[None, None] > self.start[..., None]) & (positions[None, None] <= positions[None, :, None])

    @property
    def is_start(self) -> torch.Tensor:
        """[batch, length] bool: positions at which the drafter has the token's own memory (it never drafts there)."""
        return self.start == torch.arange(self.start.shape[1], device=self.start.device)


def block_starts(inside: torch.Tensor, every: torch.Tensor | None) -> torch.Tensor:
    """s(i): the latest block start at or before i.

    Args:
        inside: [batch, length] bool, tokens of answers; everywhere else each position starts a block.
        every: [batch] block length of each row: inside answers, index % every == 0 starts a block; None: an answer is
            one block.
    """
    positions = torch.arange(inside.shape[1], device=inside.device)
    starts = ~inside
    if every is not None:
        starts = starts | (positions[None] % every[:, None] == 0)
    return torch.where(starts, positions, 0).cummax(dim=1).values


def build_blocks(inside: torch.Tensor, every: torch.Tensor | None, staircase: torch.Tensor) -> Blocks:
    """Masks of a batch.

    Args:
        inside, every: as of `block_starts`.
        staircase: [batch] bool: rows whose self-attention sees only its own block after the start, and itself.
    """
    start = block_starts(inside, every)
    positions = torch.arange(inside.shape[1], device=inside.device)
    row, column = positions[None, :, None], positions[None, None, :]
    causal = column <= row
    own = (column > start[:, :, None]) | (column == row)
    return Blocks(start, causal & (own | ~staircase[:, None, None]), column <= start[:, :, None])


def own_share(spent: float, most: float) -> float:
    """Share of updates that teach on the drafter's own text: from 0 growing linearly to `most` at half time."""
    return most * min(1.0, 2.0 * spent)


def with_own_choices(
    ids: torch.Tensor, choices: torch.Tensor, blocks: Blocks, generator: torch.Generator, share: RowShare = WHOLE
) -> torch.Tensor:
    """Tokens of which half of those that the drafter would have to guess are its own choices.

    A block's first token after the start is the newest that the drafter is given, and so stays.

    Args:
        ids: [batch, length]; choices: what the drafter chooses after each of them.
    """
    guessed = ~blocks.is_start
    guessed[:, 1:] &= ~blocks.is_start[:, :-1]
    guessed[:, 0] = False
    rows, length = ids.shape
    own = share.own(torch.rand((share.total(rows), length), generator=generator)) < 0.5
    return torch.where(guessed & own.to(ids.device), choices.roll(1, dims=1), ids)


def staircase_probability(step: int, total: int) -> float:
    """Share of rows that use the staircase: from 1 at the start falling linearly to 0 at half time."""
    return max(0.0, 1.0 - 2.0 * step / max(1, total))
