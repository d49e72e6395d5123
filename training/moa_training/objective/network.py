"""A drafter as it is trained: one module whose tensors are the checkpoint's, applied to whole rows.

Self-attention over frozen embeddings, cross-attention over memory rows up to the block start, the reused target layers.
State: the trained tensors, under the checkpoint's names; the target's parts are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.kinds.moa import ENCODER_TENSORS
from moa_shared.drafter.layers.torch_layers import MLP, DecoderLayer, RMSNorm, TorchRotary, attend, rotate
from moa_shared.errors import InternalError
from torch import nn

from moa_training.objective.blocks import Blocks


@dataclass(frozen=True, slots=True)
class Activations:
    """What the frozen target computed for a batch.

    Args:
        embeddings: [batch, length, hidden] of the tokens.
        kv: [batch, length, layers, KV width], keys rotated, interleaved by KV head; no layers where a drafter reads
            states instead.
        last_hidden: [batch, length, hidden] after the final norm.
        state: [batch, length, hidden] that enters the first reused layer; None for N = 0.
        positions: [batch, length] absolute.
        guessed: embeddings of the tokens that the drafter reads behind block starts, where these are not the text's;
            `last_hidden` and `state` are then the target's after these, and `kv` its of the text.
        entries: [batch, length, entries, hidden] of the target's hidden states that `state_entries` of the drafter's
            configuration names.
    """

    embeddings: torch.Tensor
    kv: torch.Tensor
    last_hidden: torch.Tensor
    state: torch.Tensor | None
    positions: torch.Tensor
    guessed: torch.Tensor | None = None
    entries: torch.Tensor | None = None

    @property
    def entry_states(self) -> torch.Tensor:
        """`entries`, of drafters that read them."""
        if self.entries is None:
            raise InternalError("A drafter that reads the target's states was trained without them.")
        return self.entries


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the drafter predicts for a batch, [batch, length, hidden] each.

    Args:
        feature: what the head takes.
        state: predicted input of the first reused layer (None for N = 0).
        memory: rows; None without cross-attention.
    """

    feature: torch.Tensor
    state: torch.Tensor | None
    memory: torch.Tensor | None
    self_out: torch.Tensor


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
        config: of the drafter.
        reused, final_norm: the target's last N layers and its final norm, frozen.
        inject_true_state: the authors' form for N > 0: the true state replaces the prediction at block starts and the
            reused layers run causally over both. Otherwise exactly what inference computes: the target's own keys
            and values up to the block start, predicted ones after it.
    """

    def __init__(
        self,
        config: DrafterConfig,
        reused: list[nn.Module] | None = None,
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
        self._frozen: tuple[list[Any], Any] = (list(reused or []), final_norm)  # not ours to train or to save
        self._inject = inject_true_state

    def freeze_encoder(self) -> None:
        """Keeps the memory encoder as it is: only the device's half is trained."""
        for name, weight in self.named_parameters():
            if name.startswith(ENCODER_TENSORS):
                weight.requires_grad_(False)

    def memory(self, kv: torch.Tensor) -> torch.Tensor:
        """Memory rows [batch, length, hidden]."""
        layer = self.layer_self_attention
        normed = layer.input_layernorm(kv)
        cos, sin = self._layer_rotary(torch.arange(kv.shape[-2], device=kv.device), kv.dtype)
        queries = rotate(layer.self_attn.queries(normed), cos, sin)
        keys = rotate(layer.self_attn.keys(normed), cos, sin)
        attended = _attend_over_layers(queries, keys, layer.self_attn.values(normed))
        out: torch.Tensor = self.Ekv2E(layer.finish_mean(kv, attended))
        return out

    def forward(self, target: Activations, blocks: Blocks) -> Prediction:
        """Predictions at every position of every row."""
        cos, sin = (part[:, None] for part in self._rotary(target.positions, target.embeddings.dtype))
        if target.guessed is None:
            self_out = self._attend(self.self_attention, target.embeddings, None, blocks.self_visible, cos, sin)
        else:
            self_out = self._attend_behind(target, target.guessed, blocks, cos, sin)
        memory: torch.Tensor | None = None
        if isinstance(self.cross_attention, BareMlp):
            crossed: torch.Tensor = self.cross_attention(self_out)
        else:
            memory = self._memory(target)
            turns = (part[:, None] for part in self._memory_rotary(target.positions, target.embeddings.dtype))
            crossed = self._attend(self.cross_attention, self_out, memory, blocks.memory_visible, *turns)
        if not self.config.reused_layers:
            feature = crossed if self.output_norm is None else self.output_norm(crossed)
            return Prediction(feature, None, memory, self_out)
        run = self._run_injected if self._inject else self._run_exact
        feature = self._frozen[1](run(crossed, target, blocks, cos, sin))
        return Prediction(feature, crossed, memory, self_out)

    def _memory(self, target: Activations) -> torch.Tensor:
        if self.config.lsa:
            return self.memory(target.kv)
        if not self.config.state_entries:
            return target.last_hidden
        memory: torch.Tensor = self.fc(target.entry_states.flatten(2))
        return memory

    @staticmethod
    def _attend(
        layer: DecoderLayer,
        x: torch.Tensor,
        source: torch.Tensor | None,
        visible: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        normed = layer.input_layernorm(x)
        seen = normed if source is None else layer.input_layernorm(source)
        attention = layer.self_attn
        queries = rotate(attention.queries(normed), cos, sin)
        keys = rotate(attention.keys(seen), cos, sin)
        return layer.finish(x, attend(queries, keys, attention.values(seen), visible[:, None]))

    def _attend_behind(
        self, target: Activations, guessed: torch.Tensor, blocks: Blocks, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Self-attention of guessed tokens, over the text up to their block's start and over guesses behind it."""
        layer = self.self_attention
        before, own = layer.input_layernorm(target.embeddings), layer.input_layernorm(guessed)
        attention = layer.self_attn
        keys = torch.cat([rotate(attention.keys(part), cos, sin) for part in (before, own)], 2)
        values = torch.cat([attention.values(part) for part in (before, own)], 2)
        visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
        return layer.finish(guessed, attend(rotate(attention.queries(own), cos, sin), keys, values, visible))

    def _run_injected(
        self, x: torch.Tensor, target: Activations, blocks: Blocks, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        if target.state is None:
            raise InternalError("A drafter that reuses layers was trained without the state that enters them.")
        x = torch.where(blocks.is_start[..., None], target.state, x)
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        for layer in self._frozen[0]:
            queries, keys, values = _project(layer, x, self.config.target_head_dim, cos, sin)
            x = _finish(layer, x, attend(queries, keys, values, causal))
        return x

    def _run_exact(
        self, x: torch.Tensor, target: Activations, blocks: Blocks, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        first = target.kv.shape[2] - len(self._frozen[0])
        return run_behind(self._frozen[0], x, target.kv[:, :, first:], self.config.target_head_dim, blocks, cos, sin)


def run_behind(
    layers: Sequence[Any],
    x: torch.Tensor,
    kv: torch.Tensor,
    head_dim: int,
    blocks: Blocks,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """What leaves the last of some target layers, for rows that see the text up to their block's start and their own
    block behind it.

    Args:
        x: [batch, length, hidden] entering the first of them.
        kv: [batch, length, layers, KV width] of the text.
    """
    visible = torch.cat((blocks.memory_visible, blocks.behind), dim=-1)[:, None]
    for index, layer in enumerate(layers):
        queries, keys, values = _project(layer, x, head_dim, cos, sin)
        own = kv[:, :, index]
        true = own.view(*own.shape[:2], -1, 2, head_dim)
        true = true.permute(3, 0, 2, 1, 4).to(keys.dtype)  # [2, batch, kv heads, length, head_dim]
        attended = attend(queries, torch.cat((true[0], keys), 2), torch.cat((true[1], values), 2), visible)
        x = _finish(layer, x, attended)
    return x


def _attend_over_layers(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention over a few dozen layers, batched over thousands of tokens: plain products beat a fused kernel there.

    Args:
        queries: [..., heads, layers, head_dim]; keys, values: [..., kv_heads, layers, head_dim].
    """
    groups = queries.shape[-3] // keys.shape[-3]
    batch, layers = queries.shape[:-3], queries.shape[-2]
    grouped = queries.reshape(*batch, -1, groups * layers, queries.shape[-1])
    scores = grouped @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    attended = scores.softmax(dim=-1).to(values.dtype) @ values
    out: torch.Tensor = attended.reshape(*queries.shape).transpose(-3, -2).flatten(-2)
    return out


def _project(
    layer: Any, x: torch.Tensor, head_dim: int, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    attention, normed = layer.self_attn, layer.input_layernorm(x)
    shape = (*x.shape[:2], -1, head_dim)
    queries, keys = attention.q_proj(normed).view(shape), attention.k_proj(normed).view(shape)
    if hasattr(attention, "q_norm"):
        queries, keys = attention.q_norm(queries), attention.k_norm(keys)
    values = attention.v_proj(normed).view(shape).transpose(1, 2)
    return rotate(queries.transpose(1, 2), cos, sin), rotate(keys.transpose(1, 2), cos, sin), values


def _finish(layer: Any, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
    x = x + layer.self_attn.o_proj(attended)
    out: torch.Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out
