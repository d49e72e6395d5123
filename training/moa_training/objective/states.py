"""Drafters over the target's states as they are trained: EAGLE-3 step by step everywhere, blocks at random places.

EAGLE-3 in its test-time form over whole rows of text (arXiv 2503.01840): row i holds a token and the target's states at
the token before it. In the first step it is made from these states; in each further step from the row's own output,
with the next token of the text. It sees the first step's rows up to its own, and itself in the steps between: what a
chain drafted from there would see.
A block is the token of its anchor and mask tokens behind it. Its rows see what the target's states before the anchor
became, and each other, in both directions; row j guesses the token j after the anchor, by the target's head.
State: the trained tensors, under the checkpoint's names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import EACH, JOINT
from moa_shared.drafter.kinds.torch_layers import TorchRotary
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm as RMSNorm

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.objective.objective import (
    Losses,
    Objective,
    Sample,
    Update,
    attend,
    decoder_layer,
    finish,
    fit_projection,
    guess_losses,
    heads_of,
)
from moa_training.settings import BlockSettings
from moa_training.teacher.teacher import Activations

Columns = tuple[torch.Tensor, torch.Tensor]  # keys and values


def own_layer(config: DrafterConfig, inputs: int = 0) -> Any:
    """One of the drafter's layers; `inputs`: the width of what queries, keys and values are made from, if another."""
    hidden, sizes = config.hidden_size, (config.heads, config.sa_kv_heads, config.head_dim, config.sa_mlp)
    layer = decoder_layer(hidden, *sizes, config.rms_norm_eps, config.head_norms)
    for name in ("q_proj", "k_proj", "v_proj") if inputs else ():
        outputs = getattr(layer.self_attn, name).out_features
        setattr(layer.self_attn, name, nn.Linear(inputs, outputs, bias=False))
    return layer


def attend_with_own(queries: torch.Tensor, shared: Columns, visible: torch.Tensor, own: Columns) -> torch.Tensor:
    """Grouped-query attention, [batch, groups, rows, heads * head_dim]; a group of rows sees all of its own columns.

    Queries: [batch, heads, groups, rows, head_dim]; shared: [batch, kv_heads, columns, head_dim], of which a group sees
    the visible, [batch, groups, columns] bool; own: [batch, kv_heads, groups, own columns, head_dim].
    """
    keys, values = shared
    batch, heads, groups, rows, head_dim = queries.shape
    kv_heads, columns = keys.shape[1], keys.shape[2]
    together = heads // kv_heads * rows  # of a group, the heads that share a key's among them
    grouped = queries.reshape(batch, kv_heads, -1, groups, rows, head_dim).transpose(2, 3)
    grouped = grouped.reshape(batch, kv_heads, groups, together, head_dim) * head_dim**-0.5
    far = grouped.flatten(2, 3) @ keys.transpose(-1, -2)
    far = far.view(batch, kv_heads, groups, together, columns).masked_fill(~visible[:, None, :, None], float("-inf"))
    near = grouped @ own[0].transpose(-1, -2)
    chances = torch.cat((far, near), dim=-1).softmax(dim=-1)
    out = (chances[..., :columns].flatten(2, 3) @ values).view(grouped.shape) + chances[..., columns:] @ own[1]
    out = out.view(batch, kv_heads, groups, -1, rows, head_dim).permute(0, 2, 4, 1, 3, 5)
    return out.reshape(batch, groups, rows, heads * head_dim)


@dataclass(frozen=True, slots=True)
class StateRows:
    states: torch.Tensor  # [batch, length, entries, state width] of the token before each
    embeddings: torch.Tensor  # [batch, length, hidden] of the tokens
    positions: torch.Tensor  # [batch, length] of the rows, for rotary positions
    visible: torch.Tensor  # [batch, length, length] bool, who sees whom in the first step


class TrainingEagle3(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        eps, width, entries = config.rms_norm_eps, config.state_width, len(config.state_entries)
        if config.feature_norm == JOINT:
            self.input_norm = RMSNorm(entries * width, eps)
        if config.feature_norm == EACH:
            self.fc_norm = nn.ModuleList([RMSNorm(width, eps) for _ in range(entries)])
        self.fc = nn.Linear(entries * width, config.hidden_size, bias=False)
        layer = own_layer(config, inputs=2 * config.hidden_size)
        layer.hidden_norm = RMSNorm(config.hidden_size, eps)
        self.layers: Any = nn.ModuleList([layer])
        self.norm = RMSNorm(config.hidden_size, eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab or config.vocab_size, bias=False)
        self._rotary = TorchRotary(config.head_dim, config.rope_parameters)

    def joined(self, states: torch.Tensor) -> torch.Tensor:
        """What the projection takes, [..., entries * state width], of states [..., entries, state width]."""
        if self.config.feature_norm == EACH:
            states = torch.stack([norm(part) for norm, part in zip(self.fc_norm, states.unbind(-2), strict=True)], -2)
        joined = states.flatten(-2)
        return self.input_norm(joined) if self.config.feature_norm == JOINT else joined

    def steps(self, rows: StateRows, count: int) -> Iterator[torch.Tensor]:
        """What the head takes in each of the first steps, [batch, length, hidden].

        The last k rows of step k have no token to read; what is read there instead means nothing.
        """
        config, layer = self.config, self.layers[0]
        x, first, own = self.fc(self.joined(rows.states)), None, list[Columns]()
        for step in range(count):
            state = layer.hidden_norm(x)
            inputs = torch.cat((layer.input_layernorm(rows.embeddings.roll(-step, dims=1)), state), dim=-1)
            cos, sin = (part[:, None] for part in self._rotary(rows.positions + step, x.dtype))
            queries, keys = (heads_of(layer, inputs, part, (cos, sin)) for part in "qk")
            values = heads_of(layer, inputs, "v")
            if first is None:
                first = keys, values
                attended = attend(queries, keys, values, rows.visible[:, None])
            else:
                own.append((keys, values))
                drafted = torch.stack([each for each, _ in own], 3), torch.stack([each for _, each in own], 3)
                attended = attend_with_own(queries[:, :, :, None], first, rows.visible, drafted)[:, :, 0]
            x = finish(layer, state if config.normed_residual else x, attended)
            normed = self.norm(x)
            yield normed
            x = normed if config.normed_feedback else x

    def forward(self, rows: StateRows, teacher: torch.Tensor, weight: torch.Tensor) -> Losses:
        """The losses of all steps; `weight` is [steps, batch, length]."""
        total, agreement = weight.new_zeros(()), weight.new_zeros(())
        for step, normed in enumerate(self.steps(rows, len(weight))):
            last = normed.shape[1] - step
            guesses = self.lm_head(normed[:, :last])  # nearly all count: to choose them would copy the teacher
            loss, agreed = guess_losses(guesses, teacher[:, step:], weight[step][:, :last])
            total, agreement = total + loss, agreement + agreed
        return Losses(total, total, None, None, agreement)


def eagle3_rows(target: Activations, batch: PackedBatch) -> StateRows:
    """The rows of packed text; those of a conversation's first token, which no state precedes, see only themselves."""
    alone = torch.eye(batch.ids.shape[1], dtype=torch.bool, device=batch.ids.device)
    visible = batch.causal & (batch.positions > 0)[:, None, :] | alone
    positions = (batch.positions - 1).clamp(min=0)
    return StateRows(target.entry_states.roll(1, dims=1), target.embeddings, positions, visible)


def step_weights(
    batch: PackedBatch, proposable: torch.Tensor, settings: BlockSettings, steps: int, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight of each row's guess in each step, [steps, batch, length], and the number of rows, which divides them;
    `proposable` says whether the target's choice after each token is in the draft vocabulary.
    """
    text = (batch.segment >= 0) & (batch.answer | settings.prompts)
    guesses = text & proposable
    weights = []
    for step in range(steps):
        same = batch.segment == batch.segment.roll(-step, dims=1)
        same[:, batch.ids.shape[1] - step :] = False
        weights.append(decay**step * ((batch.positions > 0) & same & guesses.roll(-step, dims=1)).float())
    return torch.stack(weights), (batch.segment >= 0).sum().float()


def teach(
    last_hidden: torch.Tensor, head: torch.Tensor, draft_ids: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's distribution over the draft vocabulary, [..., draft vocab], and whether its choice is in there."""
    logits = last_hidden @ head.t()
    choices = logits.argmax(-1)
    if draft_ids is None:
        return logits.float().softmax(-1), torch.ones_like(choices, dtype=torch.bool)
    return logits[..., draft_ids].float().softmax(-1), torch.isin(choices, draft_ids)


class StepsObjective(Objective):
    """Several steps of drafting at every position."""

    def fit_inputs(self, network: TrainingEagle3, sample: Sample) -> None:
        """A row's states are those of the token before."""
        target, state = sample(self.lesson.config.target_layers - 1, 5 * network.fc.in_features)
        with torch.no_grad():
            rows = network.joined(target.entry_states.float()).roll(1, dims=1)
        kept = target.positions > 0
        fit_projection(network.fc, rows[kept], state[kept])

    def network(self) -> TrainingEagle3:
        return TrainingEagle3(self.lesson.config)

    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        settings, lesson, target = self.lesson.settings, self.lesson, update.target
        draft_ids = None if lesson.draft_ids is None else lesson.draft_ids.to(self.head.device).long()
        with torch.no_grad():
            teacher, proposable = teach(target.last_hidden, lesson.teacher.head, draft_ids)
        steps, decay = settings.losses.steps, settings.losses.step_decay
        weight, rows = step_weights(update.batch, proposable, settings.blocks, steps, decay)
        all_weight, all_rows = lesson.mean(torch.stack((weight.sum(), rows)))
        losses: Losses = module(eagle3_rows(target, update.batch), teacher, weight / all_rows)
        return replace(losses, agreement=losses.agreement / (all_weight / all_rows).clamp(min=1e-9))


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
        self.layers: Any = nn.ModuleList([own_layer(config) for _ in range(config.own_layers)])
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
        rotaries = (self._rotary(at, x.dtype) for at in (places.flatten(1), target.positions))
        near, far = ((cos[:, None], sin[:, None]) for cos, sin in rotaries)
        for layer in self.layers:
            normed = layer.input_layernorm(x.flatten(1, 2))
            shared = heads_of(layer, context, "k", far), heads_of(layer, context, "v")
            own = (heads_of(layer, normed, part, None if part == "v" else near) for part in "qkv")
            queries, keys, values = (part.unflatten(2, (count, size)) for part in own)
            x = finish(layer, x, attend_with_own(queries, shared, blocks.visible, (keys, values)))
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
