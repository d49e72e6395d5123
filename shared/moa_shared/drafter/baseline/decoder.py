"""Drafters to compare with: EAGLE-2's one layer over the target's last hidden state, and an independent small model.

Both are stacks of the target's own kind of decoder layer over its frozen embeddings and head. State: weights only; what
one conversation has seen is in `BaselineState` (`state.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from moa_kernels import Cache, Linear, Rotary, Segment, StackShape

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.shapes import FC, layer_names
from moa_shared.drafter.checkpoint.weights import check_tables, draft_ids, read_head
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.models.network.layers import Weights, read_layer
from moa_shared.models.weights.weights import EMBEDDINGS


class BaselineDecoder:
    """Computes drafts.

    Args:
        config: of kind eagle2 or independent.
        own: the checkpoint's tensors.
        target: the target's embeddings and head.
        weights: "int8", or "float32" for a reference.

    Raises:
        ConfigError, ModelSourceError, KernelError: as `DraftDecoder`.
    """

    def __init__(self, config: DrafterConfig, own: Weights, target: Weights, weights: str) -> None:
        check_tables(target, config.vocab_size, config.hidden_size)
        self.config = config
        head_dim = config.target_head_dim
        self.arithmetic = arithmetic = Arithmetic.of(weights, (config.hidden_size, head_dim, config.sa_mlp))
        shape = StackShape(
            config.hidden_size, config.sa_mlp, config.target_heads, config.sa_kv_heads, head_dim, config.rms_norm_eps
        )
        layers = [
            read_layer(own, name, arithmetic.linear, input_norm=config.input_norm) for name in layer_names(config)
        ]
        self.stack = arithmetic.stack(shape, layers, Rotary(head_dim, config.rope_parameters))
        names = own.names()
        self._fc: Linear | None = None
        if f"{FC}.weight" in names:
            bias = own.array(f"{FC}.bias") if config.fc_bias else None
            self._fc = arithmetic.linear([own.array(f"{FC}.weight")], bias)
        self._norm = own.array("output_norm.weight") if config.output_norm else None
        self.draft_ids = draft_ids(own)
        self._target = target
        self._head = read_head(target, self.draft_ids, arithmetic)

    @property
    def reads_features(self) -> bool:
        """Whether a row takes the target's last hidden state of the token before."""
        return self._fc is not None

    def new_cache(self) -> Cache:
        """An empty cache for one conversation."""
        return self.stack.new_cache(kv=self.arithmetic.kv)

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        """What leaves the last layer for new rows, [rows, hidden size]; features [rows, hidden size] for EAGLE-2."""
        rows = self._target.rows(EMBEDDINGS, tokens)
        if self._fc is not None and features is not None:
            rows = self._fc(np.concatenate((rows, features), axis=-1))
        return self.stack.run(rows, [segment])[0]

    def features(self, out: Rows) -> Rows:
        """The input of the head, and of EAGLE-2's next row, from the last layer's rows."""
        return out if self._norm is None else self.arithmetic.norm(out, self._norm, self.config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (post-norm feature) to [rows, draft vocab]."""
        return self._head(features)
