"""Baselines as they are trained: EAGLE-2's layer and an independent small model, each applied to whole rows.

Aligned as the drafter: what is at position i is predicted from the tokens up to i, and compared with the target's
feature there. State: the trained tensors, under the checkpoint's names.
"""

from __future__ import annotations

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, RMSNorm, TorchRotary, attend, rotate
from torch import nn

from moa_training.data.packing import PackedBatch
from moa_training.objective.blocks import Blocks
from moa_training.objective.network import Activations, Prediction
from moa_training.objective.row_share import WHOLE
from moa_training.settings import BlockSettings


class TrainingBaseline(nn.Module):
    """The training form of both baselines.

    Args:
        config: of a kind that is trained by positions.
        noise: width of the uniform noise on EAGLE-2's features and embeddings while it trains; the authors take 0.2.

    Attributes:
        share: the rows that this process has of an update's.
    """

    def __init__(self, config: DrafterConfig, noise: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.noise = noise
        self.share = WHOLE
        heads, head_dim, eps, hidden = (
            config.target_heads,
            config.target_head_dim,
            config.rms_norm_eps,
            config.hidden_size,
        )
        layers = [
            DecoderLayer(hidden, heads, config.sa_kv_heads, head_dim, config.sa_mlp, eps)
            for _ in config.traits.layers(config)
        ]
        if config.reads_last_hidden:
            self.spec_model = layers[0]
            self.spec_model_fc = nn.Linear(2 * hidden, hidden, bias=False)
        else:
            self.layers = nn.ModuleList(layers)
        self.output_norm = RMSNorm(hidden, eps) if config.output_norm else None
        self._stack = layers
        self._rotary = TorchRotary(head_dim, config.rope_parameters)

    def forward(self, target: Activations, blocks: Blocks) -> Prediction:
        """Predictions at every position; EAGLE-2's at the first token of a conversation mean nothing."""
        x, positions, visible = target.embeddings, target.positions, blocks.self_visible
        if self.config.reads_last_hidden:
            before = target.last_hidden.roll(1, dims=1)
            if self.noise and self.training:
                x, before = (part + (self._drawn_for(part) - 0.5) * self.noise for part in (x, before))
            x = self.spec_model_fc(torch.cat((x, before), dim=-1))
            first = positions == 0  # has no feature before it: no row
            alone = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
            visible = visible & ~first[:, None, :] | alone
            positions = (positions - 1).clamp(min=0)
        cos, sin = (part[:, None] for part in self._rotary(positions, x.dtype))
        for layer in self._stack:
            normed, attention = layer.input_layernorm(x), layer.self_attn
            queries, keys = (rotate(part, cos, sin) for part in (attention.queries(normed), attention.keys(normed)))
            x = layer.finish(x, attend(queries, keys, attention.values(normed), visible[:, None]))
        feature = x if self.output_norm is None else self.output_norm(x)
        return Prediction(feature, None, target.last_hidden, x)

    def _drawn_for(self, rows: torch.Tensor) -> torch.Tensor:
        """Uniform noise of the shape of `rows`."""
        shape = (self.share.total(len(rows)), *rows.shape[1:])
        return self.share.own(torch.rand(shape, dtype=rows.dtype, device=rows.device))


def baseline_objective(batch: PackedBatch, settings: BlockSettings) -> tuple[Blocks, torch.Tensor]:
    """Causal rows without blocks, and the weight of each position, [rows, length]."""
    length = batch.ids.shape[1]
    places = torch.arange(length, device=batch.ids.device)
    causal = (places[None] <= places[:, None])[None] & batch.same_segment
    weight = ((batch.answer | settings.prompts) & (batch.positions > 0) & (batch.segment >= 0)).float()
    return Blocks(places[None].expand(batch.ids.shape), causal, causal), weight
