"""From a packed batch to what the objective takes: block starts, masks and weights. Pure but for the generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moa_training.data.packing import PackedBatch
from moa_training.objective.blocks import Blocks, block_starts
from moa_training.objective.row_share import WHOLE, RowShare
from moa_training.settings import BlockSettings


@dataclass(frozen=True, slots=True)
class ObjectiveBatch:
    """Blocks of a packed batch, and the weight of each position, [rows, length]."""

    blocks: Blocks
    weight: torch.Tensor


def draw_objective(
    batch: PackedBatch,
    settings: BlockSettings,
    staircase_probability: float,
    generator: torch.Generator,
    share: RowShare = WHOLE,
) -> ObjectiveBatch:
    """Draws block lengths (one a row), staircase rows and memory dropout.

    A conversation's first token always starts a block, so no block reaches into another conversation. Block starts
    carry no weight: there the drafter has the token's own memory and never drafts.
    """
    length = batch.ids.shape[1]
    rows = share.total(len(batch.ids))
    device = batch.ids.device
    every = share.own(torch.randint(settings.shortest, settings.longest + 1, (rows,), generator=generator))
    shift = share.own(torch.randint(settings.longest, (rows, 1), generator=generator))
    dropped = share.own(torch.rand(rows, generator=generator)) < settings.memory_dropout
    staircase = (share.own(torch.rand(rows, generator=generator)) < staircase_probability) & settings.staircase
    first = batch.positions == 0
    inside = (batch.answer | settings.prompts) & ~first & (batch.segment >= 0)
    places = torch.arange(length, device=device)
    starts = block_starts(inside, None)
    if settings.bounded:
        on_grid = (places[None] + shift.to(device)) % every[:, None].to(device) == 0
        bounded = torch.where(~inside | on_grid, places, 0).cummax(dim=1).values
        starts = torch.where(dropped[:, None].to(device), starts, bounded)
    row, column = places[None, :, None], places[None, None, :]
    same = batch.same_segment
    own = (column > starts[:, :, None]) | (column == row)
    blocks = Blocks(
        starts,
        (column <= row) & same & (own | ~staircase[:, None, None].to(device)),
        (column <= starts[:, :, None]) & same,
    )
    behind = (places[None] - starts).clamp(min=1)
    weight = torch.where(inside & ~blocks.is_start, settings.depth_decay ** (behind - 1).float(), 0.0)
    return ObjectiveBatch(blocks, weight)
