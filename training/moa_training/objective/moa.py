"""Mixture of Attentions as it is trained: one module whose tensors are the checkpoint's, applied to whole rows.

Self-attention over frozen embeddings, cross-attention over memory rows up to the block start, the reused target layers.
State: the trained tensors, under the checkpoint's names; the target's parts are arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.drafter.kinds.torch_layers import TorchRotary, mean_over_layers
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm as RMSNorm

from moa_training.objective.blocks import Blocks, draw_blocks, own_share, with_own_choices
from moa_training.objective.objective import (
    Losses,
    Objective,
    Prediction,
    Sample,
    Turn,
    Update,
    add_mlp,
    attend,
    decoder_layer,
    feature_losses,
    finish,
    fit_projection,
    heads_of,
    run_layer,
)
from moa_training.teacher.teacher import Activations, Teacher


class TrainingDrafter(nn.Module):
    """The training form of a drafter, over the target's last N layers and its final norm, which are frozen.

    Exactly what inference computes: the target's own keys and values up to the block start, predicted ones after it.
    """

    # Share of tokens, evenly spaced from a random offset, whose memory rows carry gradients; others cost a third.
    gradient_share: float = 1.0
    tokens_before: int = 0  # of the update's batch that other processes have, so that the spacing goes through all

    def __init__(
        self, config: DrafterConfig, reused: Sequence[nn.Module] = (), final_norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.config = config
        heads, head_dim, eps = config.target_heads, config.target_head_dim, config.rms_norm_eps
        hidden, width = config.hidden_size, config.kv_width
        self.self_attention = decoder_layer(hidden, heads, config.sa_kv_heads, head_dim, config.sa_mlp, eps)
        self.cross_attention = decoder_layer(hidden, heads, config.ca_kv_heads, head_dim, config.ca_mlp, eps)
        if not config.ca:
            del self.cross_attention.self_attn, self.cross_attention.input_layernorm
        if config.lsa:
            own = config.lsa_heads, config.lsa_kv_heads, width // config.lsa_heads
            self.layer_self_attention = decoder_layer(width, *own, config.lsa_mlp, eps)
            self.Ekv2E = nn.Linear(width, hidden)
        if config.state_entries:
            self.fc = nn.Linear(len(config.state_entries) * hidden, hidden, bias=False)
        self.output_norm = RMSNorm(hidden, eps) if config.output_norm else None
        self._rotary = TorchRotary(head_dim, config.rope_parameters)
        self._memory_rotary = TorchRotary(head_dim, config.memory_rope)
        self._layer_rotary = TorchRotary(width // config.lsa_heads, config.memory_rope)
        self._frozen: tuple[list[Any], Any] = (list(reused), final_norm)  # not ours to train or to save

    def forward(self, target: Activations, blocks: Blocks) -> Prediction:
        """Predictions at every position of every row."""
        dtype = target.embeddings.dtype
        cos, sin = (part[:, None] for part in self._rotary(target.positions, dtype))
        if target.guessed is None:
            self_out = run_layer(self.self_attention, target.embeddings, blocks.self_visible, (cos, sin))
        else:
            self_out = self._attend_behind(target, target.guessed, blocks, (cos, sin))
        if not self.config.ca:
            crossed = add_mlp(self.cross_attention, self_out)
        else:
            turn, sine = (part[:, None] for part in self._memory_rotary(target.positions, dtype))
            memory = self._memory_of(target)
            crossed = run_layer(self.cross_attention, self_out, blocks.memory_visible, (turn, sine), memory)
        if not self.config.reused_layers:
            feature = crossed if self.output_norm is None else self.output_norm(crossed)
            return Prediction(feature, None, self_out)
        layers, final_norm = self._frozen
        feature = final_norm(self.run_reused(layers, crossed, target, blocks, (cos, sin)))
        return Prediction(feature, crossed, self_out)

    def _memory_of(self, target: Activations) -> torch.Tensor:
        if self.config.lsa:
            return self.memory(target.kv)
        if not self.config.state_entries:
            return target.last_hidden
        memory: torch.Tensor = self.fc(target.entry_states.flatten(2))
        return memory

    def memory(self, kv: torch.Tensor) -> torch.Tensor:
        """Memory rows [batch, length, hidden] of [batch, length, layers, KV width]."""
        flat = kv.flatten(0, 1)
        learns = self.training and torch.is_grad_enabled() and self.Ekv2E.weight.requires_grad
        stride = round(1.0 / self.gradient_share) if learns else 1
        if stride <= 1:
            whole: torch.Tensor = self.Ekv2E(self.mean(flat))
            return whole.view(*kv.shape[:2], -1)
        chosen = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
        chosen[(int(torch.randint(stride, (1,))) - self.tokens_before) % stride :: stride] = True
        with torch.no_grad():
            still = self.Ekv2E(self.mean(flat[~chosen]))
        moving: torch.Tensor = self.Ekv2E(self.mean(flat[chosen]))
        rows = moving.new_empty(flat.shape[0], moving.shape[1])
        rows = rows.index_put((torch.nonzero(~chosen)[:, 0],), still).index_put((torch.nonzero(chosen)[:, 0],), moving)
        return rows.view(*kv.shape[:2], -1)

    def mean(self, kv: torch.Tensor) -> torch.Tensor:
        layer, config = dict(self.layer_self_attention.named_parameters()), self.config
        dim = config.kv_width // config.lsa_heads
        return mean_over_layers(layer, kv, self._layer_rotary, dim, config.rms_norm_eps)

    def _attend_behind(self, target: Activations, guessed: torch.Tensor, blocks: Blocks, turn: Turn) -> torch.Tensor:
        """Self-attention of guessed tokens, over the text up to their block's start and over guesses behind it."""
        layer = self.self_attention
        before, own = layer.input_layernorm(target.embeddings), layer.input_layernorm(guessed)
        keys = torch.cat([heads_of(layer, part, "k", turn) for part in (before, own)], 2)
        values = torch.cat([heads_of(layer, part, "v") for part in (before, own)], 2)
        visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
        return finish(layer, guessed, attend(heads_of(layer, own, "q", turn), keys, values, visible))

    def run_reused(
        self, layers: Sequence[Any], x: torch.Tensor, target: Activations, blocks: Blocks, turn: Turn
    ) -> torch.Tensor:
        return run_behind(layers, x, target.kv[:, :, target.kv.shape[2] - len(layers) :], blocks, turn)


def run_behind(layers: Sequence[Any], x: torch.Tensor, kv: torch.Tensor, blocks: Blocks, turn: Turn) -> torch.Tensor:
    """What leaves the last of some target layers, which `x` enters, for rows that see `kv`, of the text, up to their
    block's start and their own block behind it.
    """
    visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
    for index, layer in enumerate(layers):
        normed, own = layer.input_layernorm(x), kv[:, :, index]
        queries, keys = (heads_of(layer, normed, part, turn) for part in "qk")
        true = own.view(*own.shape[:2], -1, 2, keys.shape[-1])
        true = true.permute(3, 0, 2, 1, 4).to(keys.dtype)  # [2, batch, kv heads, length, head_dim]
        values = torch.cat((true[1], heads_of(layer, normed, "v")), 2)
        x = finish(layer, x, attend(queries, torch.cat((true[0], keys), 2), values, visible))
    return x


def read_behind(teacher: Teacher, target: Activations, ids: torch.Tensor, blocks: Blocks) -> Activations:
    """What the target computes of other tokens behind block starts, [rows, length], each block after the text before
    it.
    """
    guessed, layers = teacher.embeddings[ids], teacher.model.model.layers
    cos, sin = (part[:, None] for part in teacher.model.model.rotary_emb(guessed, target.positions))
    first = teacher.layers - teacher.reused_layers
    state = run_behind(layers[:first], guessed, target.kv[:, :, :first], blocks, (cos, sin))
    last = run_behind(layers[first:], state, target.kv[:, :, first:], blocks, (cos, sin))
    own_state = state if teacher.reused_layers else None
    return replace(target, last_hidden=teacher.final_norm(last), state=own_state, guessed=guessed)


class MemoryObjective(Objective):
    """Bounded blocks, and features besides the distribution."""

    def fit_inputs(self, network: TrainingDrafter, sample: Sample) -> None:
        config = self.lesson.config
        layer = config.target_layers - 1 - config.reused_layers
        if config.lsa:
            target, state = sample(layer, 5 * config.kv_width)
            with torch.no_grad():
                rows = network.eval().mean(target.kv.float().flatten(0, 1))
            fit_projection(network.Ekv2E, rows, state.float())
        elif config.state_entries:
            target, state = sample(layer, 5 * network.fc.in_features)
            fit_projection(network.fc, target.entry_states.flatten(2), state)

    def network(self) -> TrainingDrafter:
        settings, teacher = self.lesson.settings, self.lesson.teacher
        drafter = TrainingDrafter(self.lesson.config, teacher.reused, teacher.final_norm)
        drafter.gradient_share = settings.optimiser.memory_gradient_share
        rows_before = self.lesson.share.process * settings.optimiser.batch_rows
        drafter.tokens_before = rows_before * settings.optimiser.row_tokens
        if settings.drafter.memory_of is not None:  # only the device's half is trained
            for name, weight in drafter.named_parameters():
                weight.requires_grad_(not name.startswith(ENCODER_TENSORS))
        return drafter

    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        settings, share = self.lesson.settings, self.lesson.share
        target, generator = update.target, update.generator
        blocks, weight = draw_blocks(update.batch, settings.blocks, update.spent, generator, share)
        if float(torch.rand((), generator=generator)) < own_share(update.spent, settings.blocks.own_text):
            with torch.no_grad():
                choices = (module(target, blocks).feature @ self.head.t()).argmax(-1)
                if self.lesson.draft_ids is not None:
                    choices = self.lesson.draft_ids.to(choices.device).long()[choices]
                own = with_own_choices(update.batch.ids, choices, blocks, generator, share)
                target = read_behind(self.lesson.teacher, target, own, blocks)
        prediction, mean = module(target, blocks), self.lesson.mean
        return feature_losses(prediction, target, self.head, weight, settings.losses, blocks.is_start, mean)
