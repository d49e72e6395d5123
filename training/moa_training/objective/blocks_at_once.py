"""Drafters of blocks as they are trained: blocks at random places of a text, all of them at once.

A block is the token of its anchor and mask tokens behind it. Its rows see what the target's states before the anchor
became, and each other, in both directions; row j guesses the token j after the anchor. The head is the target's.
State: the trained tensors, under the checkpoint's names.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.torch_layers import RMSNorm, TorchRotary, rotate
from torch import nn

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.objective.eagle3 import OwnLayer, attend_with_own
from moa_training.objective.objective import Losses, Objective, Sample, Update, fit_projection, guess_losses
from moa_training.settings import BlockSettings
from moa_training.teacher.teacher import Activations


@dataclass(frozen=True, slots=True)
class DrawnBlocks:
    """Blocks of a batch, at the places [batch, blocks] of their anchors."""

    anchors: torch.Tensor
    visible: torch.Tensor  # [batch, blocks, length] bool: which tokens' states a block sees
    # [batch, blocks, rows - 1] places after which the target says what the rows behind the anchor guess
    guessed: torch.Tensor
    weight: torch.Tensor  # of these guesses; 0 where the text ends before, or a row has fewer places than blocks


class TrainingBlocks(nn.Module):
    """The training form of a drafter of blocks. `mask`: [hidden], the target's embedding of the mask token."""

    def __init__(self, config: DrafterConfig, mask: torch.Tensor) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.state_entries) * config.state_width, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, eps)
        self._stack = layers = [OwnLayer(config) for _ in range(config.own_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(hidden, eps)
        self._mask = mask  # not ours to train or to save
        self._rotary = TorchRotary(config.head_dim, config.rope_parameters)

    def rows(self, target: Activations, blocks: DrawnBlocks) -> torch.Tensor:
        """What the head takes of every row of the blocks, [batch, blocks, rows, hidden]."""
        mask = self._mask
        context = self.hidden_norm(self.fc(target.entry_states.flatten(-2)))
        batch, count = blocks.anchors.shape
        size = blocks.guessed.shape[2] + 1
        each = torch.arange(batch, device=mask.device)[:, None]
        x = mask.expand(batch, count, size, -1).clone()
        x[:, :, 0] = target.embeddings[each, blocks.anchors]
        places = target.positions[each, blocks.anchors][:, :, None] + torch.arange(size, device=mask.device)
        near, far = (
            [part[:, None] for part in self._rotary(at, x.dtype)] for at in (places.flatten(1), target.positions)
        )
        for layer in self._stack:
            attention, normed = layer.self_attn, layer.input_layernorm(x.flatten(1, 2))
            shared = rotate(attention.keys(context), *far), attention.values(context)
            queries, keys = (rotate(part, *near) for part in (attention.queries(normed), attention.keys(normed)))
            queries, keys, values = (
                part.unflatten(2, (count, size)) for part in (queries, keys, attention.values(normed))
            )
            x = layer.finish(x, attend_with_own(queries, shared, blocks.visible, (keys, values)))
        out: torch.Tensor = self.norm(x)
        return out

    def forward(self, target: Activations, blocks: DrawnBlocks, head: torch.Tensor, teacher: torch.Tensor) -> Losses:
        """The losses of all blocks; `teacher` is the target's distribution after each token."""
        counted = blocks.weight > 0
        each = torch.arange(len(blocks.anchors), device=head.device)[:, None, None].expand_as(blocks.guessed)
        truth = teacher[each[counted], blocks.guessed[counted]]
        logits = self.rows(target, blocks)[:, :, 1:][counted] @ head.t()
        loss, agreement = guess_losses(logits, truth, blocks.weight[counted])
        return Losses(loss, loss, None, None, agreement)


def draw_anchors(
    batch: PackedBatch, settings: BlockSettings, generator: torch.Generator, share: RowShare = WHOLE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of each row's blocks [batch, blocks], ascending, and which of them count: those with a token behind them.

    A conversation's first token is no anchor, since no state precedes it.
    """
    rows, length = batch.ids.shape
    drawn = share.own(torch.rand((share.total(rows), length), generator=generator)).to(batch.ids.device)
    followed = batch.segment == batch.segment.roll(-1, dims=1)
    followed[:, -1] = False
    taught = (batch.segment >= 0) & (batch.answer | settings.prompts).roll(-1, dims=1)
    fit = taught & followed & (batch.positions > 0)
    places = torch.where(fit, drawn, 2.0).topk(min(settings.anchors, length), largest=False).indices.sort().values
    return places, fit.gather(1, places)


def place_blocks(
    batch: PackedBatch, anchors: torch.Tensor, counts: torch.Tensor, size: int, decay: float
) -> DrawnBlocks:
    """Blocks of `size` rows at the anchors, of which some count; after `decay` guesses the weight is 1 / e."""
    length = batch.ids.shape[1]
    places = torch.arange(length, device=anchors.device)
    own = batch.segment.gather(1, anchors)
    visible = (places < anchors[..., None]) & (batch.segment[:, None] == own[..., None])
    behind = torch.arange(size - 1, device=anchors.device)
    guessed = anchors[..., None] + behind
    within = guessed < length - 1
    guessed = guessed.clamp(max=length - 1)
    each = torch.arange(len(anchors), device=anchors.device)[:, None, None]
    within &= batch.segment[each, (guessed + 1).clamp(max=length - 1)] == own[..., None]
    weight = torch.exp(-behind / decay) * (within & counts[..., None])
    return DrawnBlocks(anchors, visible, guessed, weight)


class BlocksObjective(Objective):
    """Blocks at random places."""

    def fit_inputs(self, network: TrainingBlocks, sample: Sample) -> None:
        config = self.lesson.config
        target, state = sample(config.target_layers - config.own_layers, 5 * network.fc.in_features)
        fit_projection(network.fc, target.entry_states.flatten(2), state)

    def network(self) -> TrainingBlocks:
        config = self.lesson.config
        return TrainingBlocks(config, self.lesson.teacher.embeddings[config.mask_token])

    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        settings, lesson, target = self.lesson.settings, self.lesson, update.target
        anchors, counts = draw_anchors(update.batch, settings.blocks, update.generator, lesson.share)
        blocks = place_blocks(update.batch, anchors, counts, lesson.config.block_size, settings.losses.guess_decay)
        with torch.no_grad():
            teacher = (target.last_hidden @ self.head.t()).float().softmax(-1)
        total = lesson.mean(blocks.weight.sum()).clamp(min=1e-9)
        losses: Losses = module(target, replace(blocks, weight=blocks.weight / total), self.head, teacher)
        return losses
