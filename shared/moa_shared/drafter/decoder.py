"""The client's half: frozen embeddings, self-attention, cross-attention over the memory, reused target layers, head.

State: weights only; what one conversation has seen lies in `DraftState`. All rows of a call are nodes of one draft (or
a run of committed tokens), [rows, hidden size], without a batch dimension: a device drafts for one conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from moa_shared.drafter.config import DrafterConfig
from moa_shared.drafter.inference_layer import Angler, Angles, InferenceLayer, Norm, rotate_rows
from moa_shared.drafter.layers import RMSNorm, Rotary
from moa_shared.drafter.linear import compute_dtype, make_linear
from moa_shared.drafter.row_buffer import KeyValues
from moa_shared.drafter.stored_layers import frozen_linear, load_layer


class DraftDecoder:
    """Computes drafts.

    Args:
        config: of the drafter.
        tensors: the checkpoint's.
        dtype: of the weights: float32, bfloat16, or int8 (computes in float32).
        embeddings: the target's, [vocab, hidden size]; frozen, not in the checkpoint.
        head: the target's output weights, [vocab, hidden size] (the embeddings themselves where tied).
        reused: the target's last N decoder layers (transformers modules), in order; left as they are.
        final_norm: the target's (needed for N > 0).
    """

    def __init__(
        self,
        config: DrafterConfig,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        embeddings: torch.Tensor,
        head: torch.Tensor,
        reused: Sequence[nn.Module] = (),
        final_norm: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.dtype = compute_dtype(dtype)
        heads, head_dim = config.target_heads, config.target_head_dim
        self.self_attention = InferenceLayer(load_layer(config, tensors, "self_attention"), heads, head_dim, dtype)
        self.cross_attention = InferenceLayer(
            load_layer(config, tensors, "cross_attention"), heads, head_dim, dtype, reads_memory=True
        )
        self.reused = [InferenceLayer(layer, heads, head_dim, dtype) for layer in reused]
        self.final_norm = Norm(final_norm, self.dtype) if final_norm is not None else None
        self.output_norm: Norm | None = None
        if config.output_norm:
            norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            norm.load_state_dict({"weight": tensors["output_norm.weight"]})
            self.output_norm = Norm(norm, self.dtype)
        self.angles = Angler(Rotary(head_dim, config.rope_parameters), self.dtype)
        self.memory_angles = self.angles
        if config.unscaled_memory_rope:
            self.memory_angles = Angler(Rotary(head_dim, config.memory_rope), self.dtype)
        self.draft_ids = tensors.get("draft_ids")
        self._embeddings = embeddings
        self._head = make_linear([frozen_linear(head if self.draft_ids is None else head[self.draft_ids])], dtype)

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Token ids to [rows, hidden size]."""
        if len(tokens) == 1:
            return self._embeddings[tokens[0] : tokens[0] + 1].to(self.dtype)
        return self._embeddings.index_select(0, torch.tensor(tokens, dtype=torch.long)).to(self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden size] (post-norm feature) to [rows, draft vocab]."""
        return self._head(hidden)

    def memory_keys_values(self, rows: torch.Tensor, positions: range | torch.Tensor) -> KeyValues:
        """Wire rows [rows, memory width] to rotated keys and values, [kv heads, rows, head_dim] each."""
        keys, values = rows.reshape(rows.shape[0], 2, -1, self.config.target_head_dim).unbind(1)
        return rotate_rows(keys, self.memory_angles(positions)).transpose(0, 1), values.transpose(0, 1)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the head takes, of the last layer's rows."""
        norm = self.final_norm if self.reused else self.output_norm
        return x if norm is None else norm(x)

    def memory_angles_like(self, angles: Angles, positions: range | torch.Tensor) -> Angles:
        """Angles of cross-attention where those of self-attention are known."""
        return angles if self.memory_angles is self.angles else self.memory_angles(positions)
