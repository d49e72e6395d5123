"""Bounded blocks and the masks that follow from them (arXiv 2410.03804, training; REFERENCE of the published code).

A block starts where the drafter last had memory: position i sees the memory rows up to its block's start s(i). Outside
answers s(i) = i. Pure but for the generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.settings import BlockSettings


@dataclass(frozen=True, slots=True)
class Blocks:
    start: torch.Tensor  # [batch, length], s(i)
    self_visible: torch.Tensor  # [batch, length, length] bool, self-attention
    memory_visible: torch.Tensor  # [batch, length, length] bool, cross-attention over memory rows

    @classmethod
    def from_starts(cls, starts: torch.Tensor, staircase: torch.Tensor, same: torch.Tensor | None = None) -> Blocks:
        """Masks of a batch, by where blocks start [batch, length], which rows' self-attention sees only its own block
        after the start and itself [batch], and which positions are of the same conversation, if not all.
        """
        places = torch.arange(starts.shape[1], device=starts.device)
        start = torch.where(starts, places, 0).cummax(dim=1).values
        row, column = places[None, :, None], places[None, None, :]
        own = (column > start[:, :, None]) | (column == row)
        self_visible = (column <= row) & (own | ~staircase[:, None, None])
        memory_visible = column <= start[:, :, None]
        if same is not None:
            self_visible, memory_visible = self_visible & same, memory_visible & same
        return cls(start, self_visible, memory_visible)

    @property
    def behind(self) -> torch.Tensor:
        """[batch, length, length] bool: who sees what of its own block, after the block's start."""
        positions = torch.arange(self.start.shape[1], device=self.start.device)
        return (positions[None, None] > self.start[..., None]) & (positions[None, None] <= positions[None, :, None])

    @property
    def is_start(self) -> torch.Tensor:
        """[batch, length] bool: positions at which the drafter has the token's own memory (it never drafts there)."""
        return self.start == torch.arange(self.start.shape[1], device=self.start.device)


def draw_blocks(
    batch: PackedBatch, settings: BlockSettings, spent: float, generator: torch.Generator, share: RowShare = WHOLE
) -> tuple[Blocks, torch.Tensor]:
    """Draws block lengths (one a row), staircase rows and memory dropout; the blocks, and each position's weight.

    A conversation's first token always starts a block, so no block reaches into another conversation. Block starts
    carry no weight: there the drafter has the token's own memory and never drafts. The share of rows that use the
    staircase falls from 1 to 0 at half time.
    """
    rows, device = share.total(len(batch.ids)), batch.ids.device
    every = share.own(torch.randint(settings.shortest, settings.longest + 1, (rows,), generator=generator))
    shift = share.own(torch.randint(settings.longest, (rows, 1), generator=generator))
    dropped = share.own(torch.rand(rows, generator=generator)) < settings.memory_dropout
    staircase = (share.own(torch.rand(rows, generator=generator)) < 1.0 - 2.0 * spent) & settings.staircase
    inside = (batch.answer | settings.prompts) & (batch.positions > 0) & (batch.segment >= 0)
    places = torch.arange(batch.ids.shape[1], device=device)
    starts = ~inside
    if settings.bounded:
        on_grid = (places[None] + shift.to(device)) % every[:, None].to(device) == 0
        starts = starts | on_grid & ~dropped[:, None].to(device)
    blocks = Blocks.from_starts(starts, staircase.to(device), batch.same_segment)
    behind = (places[None] - blocks.start).clamp(min=1)
    weight = torch.where(inside & ~blocks.is_start, settings.depth_decay ** (behind - 1).float(), 0.0)
    return blocks, weight


def own_share(spent: float, most: float) -> float:
    """Share of updates that teach on the drafter's own text: from 0 growing linearly to `most` at half time."""
    return most * min(1.0, 2.0 * spent)


def with_own_choices(
    ids: torch.Tensor, choices: torch.Tensor, blocks: Blocks, generator: torch.Generator, share: RowShare = WHOLE
) -> torch.Tensor:
    """Tokens of which half of those that the drafter would have to guess are its own choices.

    A block's first token after the start is the newest that the drafter is given, and so stays.
    """
    guessed = ~blocks.is_start
    guessed[:, 1:] &= ~blocks.is_start[:, :-1]
    guessed[:, 0] = False
    rows, length = ids.shape
    own = share.own(torch.rand((share.total(rows), length), generator=generator)) < 0.5
    return torch.where(guessed & own.to(ids.device), choices.roll(1, dims=1), ids)
