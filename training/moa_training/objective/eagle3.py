"""EAGLE-3 as it is trained: its test-time form over whole rows of text, several steps of drafting at every position.

Row i holds a token and the target's states at the token before it. In the first step it is made from these states; in
each further step from the row's own output, with the next token of the text (arXiv 2503.01840). It sees the first
step's rows up to its own, and itself in the steps between: what a chain drafted from there would see.
State: the trained tensors, under the checkpoint's names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.config import EACH, JOINT
from moa_shared.drafter.kinds.torch_layers import DecoderLayer, RMSNorm, TorchAttention, TorchRotary, attend, rotate
from torch import nn

from moa_training.data.batches import PackedBatch
from moa_training.objective.objective import Losses, Objective, Sample, Update, fit_projection, guess_losses
from moa_training.settings import BlockSettings
from moa_training.teacher.teacher import Activations

Columns = tuple[torch.Tensor, torch.Tensor]  # keys and values


class OwnAttention(TorchAttention):
    """Projections whose queries and keys may be normed, head by head, as in Qwen3."""

    def __init__(self, config: DrafterConfig, inputs: int) -> None:
        heads, head_dim = config.heads, config.head_dim
        super().__init__(inputs, heads, config.sa_kv_heads, head_dim)
        self.o_proj = nn.Linear(heads * head_dim, config.hidden_size, bias=False)
        if config.head_norms:
            self.q_norm, self.k_norm = (RMSNorm(head_dim, config.rms_norm_eps) for _ in range(2))
        self._normed = config.head_norms

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        queries = super().queries(x)
        return self.q_norm(queries) if self._normed else queries

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        keys = super().keys(x)
        return self.k_norm(keys) if self._normed else keys


class OwnLayer(DecoderLayer):
    """One of the drafter's layers; `inputs` is the width of what queries, keys and values are made from."""

    def __init__(self, config: DrafterConfig, inputs: int | None = None) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(hidden, config.heads, config.sa_kv_heads, config.head_dim, config.sa_mlp, eps)
        self.self_attn = OwnAttention(config, inputs or hidden)


def attend_with_own(queries: torch.Tensor, shared: Columns, visible: torch.Tensor, own: Columns) -> torch.Tensor:
    """Grouped-query attention; a group of rows sees all of its own columns.

    Args:
        queries: [batch, heads, groups, rows, head_dim].
        shared: [batch, kv_heads, columns, head_dim].
        visible: [batch, groups, columns] bool, which shared columns the rows of a group see.
        own: [batch, kv_heads, groups, own columns, head_dim].

    Returns:
        [batch, groups, rows, heads * head_dim].
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
    """Rows of text as EAGLE-3 reads them."""

    states: torch.Tensor  # [batch, length, entries, state width] of the token before each
    embeddings: torch.Tensor  # [batch, length, hidden] of the tokens
    positions: torch.Tensor  # [batch, length] of the rows, for rotary positions
    visible: torch.Tensor  # [batch, length, length] bool, who sees whom in the first step


class Eagle3Layer(OwnLayer):
    """A layer whose queries, keys and values are made from an embedding next to a state."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, inputs=2 * config.hidden_size)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class TrainingEagle3(nn.Module):
    """The training form of EAGLE-3 and EAGLE-3.1."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        eps, width, entries = config.rms_norm_eps, config.state_width, len(config.state_entries)
        if config.feature_norm == JOINT:
            self.input_norm = RMSNorm(entries * width, eps)
        if config.feature_norm == EACH:
            self.fc_norm = nn.ModuleList([RMSNorm(width, eps) for _ in range(entries)])
        self.fc = nn.Linear(entries * width, config.hidden_size, bias=False)
        self._stack = layers = [Eagle3Layer(config)]
        self.layers = nn.ModuleList(layers)
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
        layer, config = self._stack[0], self.config
        x, first, own = self.fc(self.joined(rows.states)), None, list[Columns]()
        for step in range(count):
            state = layer.hidden_norm(x)
            inputs = torch.cat((layer.input_layernorm(rows.embeddings.roll(-step, dims=1)), state), dim=-1)
            cos, sin = (part[:, None] for part in self._rotary(rows.positions + step, x.dtype))
            attention = layer.self_attn
            queries, keys = (rotate(part, cos, sin) for part in (attention.queries(inputs), attention.keys(inputs)))
            values = attention.values(inputs)
            if first is None:
                first = keys, values
                attended = attend(queries, keys, values, rows.visible[:, None])
            else:
                own.append((keys, values))
                drafted = torch.stack([each for each, _ in own], 3), torch.stack([each for _, each in own], 3)
                attended = attend_with_own(queries[:, :, :, None], first, rows.visible, drafted)[:, :, 0]
            x = layer.finish(state if config.normed_residual else x, attended)
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
