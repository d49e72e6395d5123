"""Baselines as they are trained: EAGLE-2's layer and an independent small model, each applied to whole rows.

Aligned as the drafter: what is at position i is predicted from the tokens up to i, and compared with the target's
feature there. State: the trained tensors, under the checkpoint's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, RMSNorm, TorchRotary
from torch import nn

from moa_training.data.batches import WHOLE, RowShare
from moa_training.objective.objective import (
    Losses,
    Objective,
    Prediction,
    Sample,
    Update,
    feature_losses,
    fit_projection,
    run_layer,
)
from moa_training.teacher.teacher import Activations


def own_layers(config: DrafterConfig) -> list[DecoderLayer]:
    hidden, heads, head_dim = config.hidden_size, config.target_heads, config.target_head_dim
    sizes = (hidden, heads, config.sa_kv_heads, head_dim, config.sa_mlp, config.rms_norm_eps)
    return [DecoderLayer(*sizes) for _ in config.traits.layers(config)]


class TrainingIndependent(nn.Module):
    """The training form of an independent drafter."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(own_layers(config))
        self.output_norm = RMSNorm(config.hidden_size, config.rms_norm_eps) if config.output_norm else None
        self._rotary = TorchRotary(config.target_head_dim, config.rope_parameters)

    def forward(self, target: Activations, visible: torch.Tensor) -> Prediction:
        """Predictions at every position."""
        x = target.embeddings
        cos, sin = (part[:, None] for part in self._rotary(target.positions, x.dtype))
        for layer in self.layers:
            x = run_layer(layer, x, visible, (cos, sin))  # type: ignore[arg-type]
        return Prediction(x if self.output_norm is None else self.output_norm(x), None, x)


class TrainingEagle2(nn.Module):
    """The training form of EAGLE-2.

    Args:
        noise: width of the uniform noise on features and embeddings while it trains.
        share: the rows that this process has of an update's.
    """

    def __init__(self, config: DrafterConfig, noise: float = 0.0, share: RowShare = WHOLE) -> None:
        super().__init__()
        (self.spec_model,) = own_layers(config)
        self.spec_model_fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.output_norm = RMSNorm(config.hidden_size, config.rms_norm_eps) if config.output_norm else None
        self._rotary = TorchRotary(config.target_head_dim, config.rope_parameters)
        self._noise, self._share = noise, share

    def forward(self, target: Activations, visible: torch.Tensor) -> Prediction:
        """Predictions at every position; those at the first token of a conversation mean nothing."""
        x, before = target.embeddings, target.last_hidden.roll(1, dims=1)
        if self._noise and self.training:
            x, before = (part + (self._drawn_for(part) - 0.5) * self._noise for part in (x, before))
        x = self.spec_model_fc(torch.cat((x, before), dim=-1))
        first = target.positions == 0  # has no feature before it: no row
        alone = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        cos, sin = (part[:, None] for part in self._rotary((target.positions - 1).clamp(min=0), x.dtype))
        x = run_layer(self.spec_model, x, visible & ~first[:, None, :] | alone, (cos, sin))
        return Prediction(x if self.output_norm is None else self.output_norm(x), None, x)

    def _drawn_for(self, rows: torch.Tensor) -> torch.Tensor:
        """Uniform noise of the shape of `rows`."""
        shape = (self._share.total(len(rows)), *rows.shape[1:])
        return self._share.own(torch.rand(shape, dtype=rows.dtype, device=rows.device))


class PositionsObjective(Objective):
    """Every position of the text, by distribution and feature."""

    def fit_inputs(self, network: Any, sample: Sample) -> None:
        config = self.lesson.config
        if not config.reads_last_hidden:
            return
        target, state = sample(config.target_layers - 1, 10 * config.hidden_size)
        rows, kept = torch.cat((target.embeddings, target.last_hidden.roll(1, dims=1)), -1), target.positions > 0
        fit_projection(network.spec_model_fc, rows[kept], state[kept])

    def network(self) -> nn.Module:
        config, noise = self.lesson.config, self.lesson.settings.drafter.eagle_noise
        if config.reads_last_hidden:
            return TrainingEagle2(config, noise, self.lesson.share)
        return TrainingIndependent(config)

    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        settings, batch, target = self.lesson.settings, update.batch, update.target
        taught = (batch.answer | settings.blocks.prompts) & (batch.positions > 0) & (batch.segment >= 0)
        prediction, no_start = module(target, batch.causal), torch.zeros_like(taught)
        mean = self.lesson.mean
        return feature_losses(prediction, target, self.head, taught.float(), settings.losses, no_start, mean)
