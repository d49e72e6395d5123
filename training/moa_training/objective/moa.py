"""Mixture of Attentions as it is trained: one module whose tensors are the checkpoint's, applied to whole rows.

Self-attention over frozen embeddings, cross-attention over memory rows up to the block start, the reused target layers.
Layer self-attention runs over every layer of every token and is the most expensive part of training. So its norm keeps
no float32 copies, attention over so few layers is small batched products, and the mean over layers is taken before the
last projection. State: the trained tensors, under the checkpoint's names; the target's parts are arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.drafter.kinds.torch_layers import MLP, DecoderLayer, RMSNorm, TorchRotary, attend, rotate
from moa_shared.errors import InternalError
from torch import nn
from torch.nn import functional as F

from moa_training.objective.blocks import Blocks, draw_blocks, own_share, with_own_choices
from moa_training.objective.objective import (
    Losses,
    Objective,
    Prediction,
    Sample,
    Turn,
    Update,
    feature_losses,
    fit_projection,
    run_layer,
)
from moa_training.teacher.teacher import Activations, Teacher


class BareMlp(nn.Module):
    """A layer of which only norm and MLP are left."""

    def __init__(self, width: int, inner: int, eps: float) -> None:
        super().__init__()
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.mlp = MLP(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class TrainingDrafter(nn.Module):
    """The training form of a drafter.

    Args:
        reused, final_norm: the target's last N layers and its final norm, frozen.
        inject_true_state: the authors' form for N > 0: the true state replaces the prediction at block starts and the
            reused layers run causally over both. Otherwise exactly what inference computes: the target's own keys
            and values up to the block start, predicted ones after it.
    """

    # Share of tokens, evenly spaced from a random offset, whose memory rows carry gradients; others cost a third.
    gradient_share: float = 1.0
    tokens_before: int = 0  # of the update's batch that other processes have, so that the spacing goes through all

    def __init__(
        self,
        config: DrafterConfig,
        reused: Sequence[nn.Module] = (),
        final_norm: nn.Module | None = None,
        *,
        inject_true_state: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        heads, head_dim, eps = config.target_heads, config.target_head_dim, config.rms_norm_eps
        hidden, width = config.hidden_size, config.kv_width
        self.self_attention = DecoderLayer(hidden, heads, config.sa_kv_heads, head_dim, config.sa_mlp, eps)
        self.cross_attention = (
            DecoderLayer(hidden, heads, config.ca_kv_heads, head_dim, config.ca_mlp, eps)
            if config.ca
            else BareMlp(hidden, config.ca_mlp, eps)
        )
        if config.lsa:
            self.layer_self_attention = DecoderLayer(
                width, config.lsa_heads, config.lsa_kv_heads, width // config.lsa_heads, config.lsa_mlp, eps
            )
            self.Ekv2E = nn.Linear(width, hidden)
        if config.state_entries:
            self.fc = nn.Linear(len(config.state_entries) * hidden, hidden, bias=False)
        self.output_norm = RMSNorm(hidden, eps) if config.output_norm else None
        self._rotary = TorchRotary(head_dim, config.rope_parameters)
        self._memory_rotary = TorchRotary(head_dim, config.memory_rope)
        self._layer_rotary = TorchRotary(width // config.lsa_heads, config.memory_rope)
        self._frozen: tuple[list[Any], Any] = (list(reused), final_norm)  # not ours to train or to save
        self._inject = inject_true_state

    def forward(self, target: Activations, blocks: Blocks) -> Prediction:
        """Predictions at every position of every row."""
        dtype = target.embeddings.dtype
        cos, sin = (part[:, None] for part in self._rotary(target.positions, dtype))
        if target.guessed is None:
            self_out = run_layer(self.self_attention, target.embeddings, blocks.self_visible, (cos, sin))
        else:
            self_out = self._attend_behind(target, target.guessed, blocks, (cos, sin))
        if isinstance(self.cross_attention, BareMlp):
            crossed: torch.Tensor = self.cross_attention(self_out)
        else:
            turn, sine = (part[:, None] for part in self._memory_rotary(target.positions, dtype))
            memory = self._memory_of(target)
            crossed = run_layer(self.cross_attention, self_out, blocks.memory_visible, (turn, sine), memory)
        if not self.config.reused_layers:
            feature = crossed if self.output_norm is None else self.output_norm(crossed)
            return Prediction(feature, None, self_out)
        run = self._run_injected if self._inject else self._run_exact
        feature = self._frozen[1](run(crossed, target, blocks, (cos, sin)))
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
            whole: torch.Tensor = self.Ekv2E(self.over_layers(flat))
            return whole.view(*kv.shape[:2], -1)
        chosen = torch.zeros(flat.shape[0], dtype=torch.bool, device=flat.device)
        chosen[(int(torch.randint(stride, (1,))) - self.tokens_before) % stride :: stride] = True
        with torch.no_grad():
            still = self.Ekv2E(self.over_layers(flat[~chosen]))
        moving: torch.Tensor = self.Ekv2E(self.over_layers(flat[chosen]))
        rows = moving.new_empty(flat.shape[0], moving.shape[1])
        rows = rows.index_put((torch.nonzero(~chosen)[:, 0],), still).index_put((torch.nonzero(chosen)[:, 0],), moving)
        return rows.view(*kv.shape[:2], -1)

    def over_layers(self, kv: torch.Tensor) -> torch.Tensor:
        """The mean over layers of layer self-attention, [tokens, KV width] of [tokens, layers, KV width]."""
        config, layer = self.config, self.layer_self_attention
        tokens, layers, width = kv.shape
        attention, mlp = layer.self_attn, layer.mlp
        normed = _normed(kv, layer.input_layernorm)
        turn = self._layer_rotary(torch.arange(layers, device=kv.device), kv.dtype)
        heads, kv_heads, dim = config.lsa_heads, config.lsa_kv_heads, width // config.lsa_heads
        queries = rotate(attention.q_proj(normed).view(tokens, layers, heads, dim).transpose(1, 2), *turn)
        keys = rotate(attention.k_proj(normed).view(tokens, layers, kv_heads, dim).transpose(1, 2), *turn)
        values = attention.v_proj(normed).view(tokens, layers, kv_heads, dim).transpose(1, 2)
        group = heads // kv_heads
        grouped = queries.reshape(tokens * kv_heads, group * layers, dim) * dim**-0.5
        scores = torch.bmm(grouped, keys.reshape(tokens * kv_heads, layers, dim).transpose(1, 2))
        mixed = torch.bmm(scores.softmax(-1), values.reshape(tokens * kv_heads, layers, dim))
        attended = mixed.view(tokens, heads, layers, dim).transpose(1, 2).reshape(tokens, layers, heads * dim)
        x = kv + attention.o_proj(attended)
        inner = _normed(x, layer.post_attention_layernorm)
        inner = (F.silu(mlp.gate_proj(inner)) * mlp.up_proj(inner)).mean(1)
        out: torch.Tensor = x.mean(1) + mlp.down_proj(inner)
        return out

    def _attend_behind(self, target: Activations, guessed: torch.Tensor, blocks: Blocks, turn: Turn) -> torch.Tensor:
        """Self-attention of guessed tokens, over the text up to their block's start and over guesses behind it."""
        layer = self.self_attention
        before, own = layer.input_layernorm(target.embeddings), layer.input_layernorm(guessed)
        attention = layer.self_attn
        keys = torch.cat([rotate(attention.keys(part), *turn) for part in (before, own)], 2)
        values = torch.cat([attention.values(part) for part in (before, own)], 2)
        visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
        return layer.finish(guessed, attend(rotate(attention.queries(own), *turn), keys, values, visible))

    def _run_injected(self, x: torch.Tensor, target: Activations, blocks: Blocks, turn: Turn) -> torch.Tensor:
        if target.state is None:
            raise InternalError("A drafter that reuses layers was trained without the state that enters them.")
        x = torch.where(blocks.is_start[..., None], target.state, x)
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        for layer in self._frozen[0]:
            queries, keys, values = _project(layer, x, self.config.target_head_dim, turn)
            x = _finish(layer, x, attend(queries, keys, values, causal))
        return x

    def _run_exact(self, x: torch.Tensor, target: Activations, blocks: Blocks, turn: Turn) -> torch.Tensor:
        first = target.kv.shape[2] - len(self._frozen[0])
        return run_behind(self._frozen[0], x, target.kv[:, :, first:], self.config.target_head_dim, blocks, turn)


def _normed(x: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


def run_behind(
    layers: Sequence[Any], x: torch.Tensor, kv: torch.Tensor, head_dim: int, blocks: Blocks, turn: Turn
) -> torch.Tensor:
    """What leaves the last of some target layers, which `x` enters, for rows that see `kv`, of the text, up to their
    block's start and their own block behind it.
    """
    visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
    for index, layer in enumerate(layers):
        queries, keys, values = _project(layer, x, head_dim, turn)
        own = kv[:, :, index]
        true = own.view(*own.shape[:2], -1, 2, head_dim)
        true = true.permute(3, 0, 2, 1, 4).to(keys.dtype)  # [2, batch, kv heads, length, head_dim]
        attended = attend(queries, torch.cat((true[0], keys), 2), torch.cat((true[1], values), 2), visible)
        x = _finish(layer, x, attended)
    return x


def read_behind(teacher: Teacher, target: Activations, ids: torch.Tensor, blocks: Blocks) -> Activations:
    """What the target computes of other tokens behind block starts, [rows, length], each block after the text before
    it.
    """
    guessed, layers = teacher.embeddings[ids], teacher.model.model.layers
    cos, sin = (part[:, None] for part in teacher.model.model.rotary_emb(guessed, target.positions))
    first, head_dim = teacher.layers - teacher.reused_layers, cos.shape[-1]
    state = run_behind(layers[:first], guessed, target.kv[:, :, :first], head_dim, blocks, (cos, sin))
    last = run_behind(layers[first:], state, target.kv[:, :, first:], head_dim, blocks, (cos, sin))
    own_state = state if teacher.reused_layers else None
    return replace(target, last_hidden=teacher.final_norm(last), state=own_state, guessed=guessed)


def _project(layer: Any, x: torch.Tensor, head_dim: int, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    attention, normed = layer.self_attn, layer.input_layernorm(x)
    shape = (*x.shape[:2], -1, head_dim)
    queries, keys = attention.q_proj(normed).view(shape), attention.k_proj(normed).view(shape)
    if hasattr(attention, "q_norm"):
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    values = attention.v_proj(normed).view(shape).transpose(1, 2)
    return rotate(queries.transpose(1, 2), *turn), rotate(keys.transpose(1, 2), *turn), values


def _finish(layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    x = x + layer.self_attn.o_proj(attended)
    out: torch.Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


class MemoryObjective(Objective):
    """Bounded blocks, and features besides the distribution."""

    def fit_inputs(self, network: TrainingDrafter, sample: Sample) -> None:
        config = self.lesson.config
        layer = config.target_layers - 1 - config.reused_layers
        if config.lsa:
            target, state = sample(layer, 5 * config.kv_width)
            with torch.no_grad():
                rows = network.eval().over_layers(target.kv.float().flatten(0, 1))
            fit_projection(network.Ekv2E, rows, state.float())
        elif config.state_entries:
            target, state = sample(layer, 5 * network.fc.in_features)
            fit_projection(network.fc, target.entry_states.flatten(2), state)

    def network(self) -> TrainingDrafter:
        settings, teacher = self.lesson.settings, self.lesson.teacher
        inject = settings.losses.inject_true_state
        drafter = TrainingDrafter(self.lesson.config, teacher.reused, teacher.final_norm, inject_true_state=inject)
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
