"""Drafters to compare with: EAGLE-2's one layer over the target's last hidden state, and a small model of its own.

Both are stacks of the target's own kind of decoder layer over its frozen embeddings and head. State: weights only; what
one conversation has seen lies in `BaselineState` (`baseline_state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from moa_shared.drafter.config import EAGLE2, DrafterConfig
from moa_shared.drafter.inference_layer import Angler, InferenceLayer, Norm
from moa_shared.drafter.layers import RMSNorm, Rotary
from moa_shared.drafter.linear import compute_dtype, make_linear
from moa_shared.drafter.stored_layers import frozen_linear, layer_shapes, load_layer

FC = "spec_model_fc"  # the authors' name of EAGLE's projection


def layer_names(config: DrafterConfig) -> list[str]:
    """Prefixes of the decoder layers in the checkpoint: the authors' for EAGLE-2."""
    return ["spec_model"] if config.kind == EAGLE2 else [f"layers.{index}" for index in range(config.own_layers)]


def baseline_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a baseline's checkpoint; their layers take the sizes of `sa_kv_heads` and `sa_mlp`."""
    hidden, inner = config.hidden_size, config.sa_mlp
    query, keys = config.target_heads * config.target_head_dim, config.sa_kv_heads * config.target_head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    for name in layer_names(config):
        shapes |= layer_shapes(name, hidden, query, keys, inner)
    if config.kind == EAGLE2:
        shapes[f"{FC}.weight"] = (hidden, 2 * hidden)
    if config.output_norm:
        shapes["output_norm.weight"] = (hidden,)
    if config.draft_vocab:
        shapes["draft_ids"] = (config.draft_vocab,)
    return shapes


class BaselineDecoder:
    """Computes drafts.

    Args:
        config: of kind eagle2 or independent.
        tensors: the checkpoint's.
        dtype: of the weights: float32, bfloat16, or int8 (computes in float32).
        embeddings, head: the target's, [vocab, hidden size]; frozen, not in the checkpoint.
    """

    def __init__(
        self,
        config: DrafterConfig,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        embeddings: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        self.config = config
        self.dtype = compute_dtype(dtype)
        heads, head_dim = config.target_heads, config.target_head_dim
        self.layers = [
            InferenceLayer(load_layer(config, tensors, name), heads, head_dim, dtype) for name in layer_names(config)
        ]
        self._fc = make_linear([frozen_linear(tensors[f"{FC}.weight"])], dtype) if config.kind == EAGLE2 else None
        self._norm: Norm | None = None
        if config.output_norm:
            norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            norm.load_state_dict({"weight": tensors["output_norm.weight"]})
            self._norm = Norm(norm, self.dtype)
        self.angles = Angler(Rotary(head_dim, config.rope_parameters), self.dtype)
        self.draft_ids = tensors.get("draft_ids")
        self._embeddings = embeddings
        self._head = make_linear(
            [frozen_linear(head if self.draft_ids is None else head[self.draft_ids.long()])], dtype
        )

    @property
    def reads_features(self) -> bool:
        """Whether a row takes the target's last hidden state of the token before."""
        return self._fc is not None

    def inputs(self, tokens: Sequence[int], features: torch.Tensor | None) -> torch.Tensor:
        """What enters the first layer, [rows, hidden size]; features [rows, hidden size] for EAGLE-2."""
        rows = self._embeddings.index_select(0, torch.tensor(tokens, dtype=torch.long)).to(self.dtype)
        if self._fc is None or features is None:
            return rows
        return self._fc(torch.cat((rows, features), dim=-1))

    def features(self, out: torch.Tensor) -> torch.Tensor:
        """What the head takes, and EAGLE-2's next row, of the last layer's rows."""
        return out if self._norm is None else self._norm(out)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """[rows, hidden size] (post-norm feature) to [rows, draft vocab]."""
        return self._head(features)
