"""EAGLE-3's half on the device (arXiv 2503.01840): layers over projected states of the target, or over its own.

A row takes a token and the feature of the token before. The first layer's attention reads the token's embedding beside
that feature, which alone enters the residual. State: weights only; what one conversation has seen is in
`BaselineState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from moa_kernels import Cache, Layer, Rotary, Segment, StackShape

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.shapes import OWN_EMBEDDINGS, layer_names
from moa_shared.drafter.checkpoint.weights import check_tables, draft_ids, read_head
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.models.network.layers import Weights, read_layer
from moa_shared.models.weights.weights import EMBEDDINGS


class Eagle3Decoder:
    """Computes drafts.

    Args:
        config: of kind eagle3.
        own: the checkpoint's tensors.
        target: the target's embeddings, unless the checkpoint has its own.
        weights: "int8", or "float32" for a reference.

    Raises:
        ConfigError, ModelSourceError, KernelError: as `DraftDecoder`.
    """

    reads_features = True

    def __init__(self, config: DrafterConfig, own: Weights, target: Weights, weights: str) -> None:
        if not config.own_embeddings:
            check_tables(target, config.vocab_size, config.hidden_size, (EMBEDDINGS,))
        self.config = config
        hidden, head_dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.arithmetic = arithmetic = Arithmetic.of(weights, (hidden, head_dim, config.sa_mlp))
        shape = StackShape(hidden, config.sa_mlp, config.heads, config.sa_kv_heads, head_dim, eps, embedding=hidden)
        first, *others = (read_layer(own, name, arithmetic.linear) for name in layer_names(config))
        hidden_norm = own.array(f"{layer_names(config)[0]}.hidden_norm.weight")
        self._residual_norm = hidden_norm if config.normed_residual else None
        layers = [_over_features(first, None if config.normed_residual else hidden_norm), *others]
        self.stack = arithmetic.stack(shape, layers, Rotary(head_dim, config.rope_parameters))
        self._norm = own.array("norm.weight")
        self.draft_ids = draft_ids(own)
        self._embeddings = (own, OWN_EMBEDDINGS) if config.own_embeddings else (target, EMBEDDINGS)
        self._head = read_head(own, None, arithmetic)

    def new_cache(self) -> Cache:
        """An empty cache for one conversation."""
        return self.stack.new_cache(kv=self.arithmetic.kv)

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        """What leaves the last layer for new rows, [rows, hidden size]; features [rows, hidden size]."""
        weights, name = self._embeddings
        embeddings = weights.rows(name, tokens)
        rows = np.zeros_like(embeddings) if features is None else features
        if self._residual_norm is not None:
            rows = self._normed(rows, self._residual_norm)
        of_layers = np.repeat(embeddings[:, None], len(self.stack.layers), axis=1)
        return self.stack.run(rows, [segment], embeddings=of_layers)[0]

    def features(self, out: Rows) -> Rows:
        """What the next row takes in place of the target's feature, from the last layer's rows."""
        return self._normed(out, self._norm) if self.config.normed_feedback else out

    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (of `features`) to [rows, draft vocab]."""
        return self._head(features if self.config.normed_feedback else self._normed(features, self._norm))

    def _normed(self, rows: Rows, weight: Rows) -> Rows:
        return self.arithmetic.norm(rows, weight, self.config.rms_norm_eps)


def _over_features(layer: Layer, feature_norm: Rows | None) -> Layer:
    """The first layer: its input norm is that of the embeddings."""
    return replace(layer, attention_norm=feature_norm, attention_embedding_norm=layer.attention_norm)
