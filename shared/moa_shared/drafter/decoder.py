"""The client's half: frozen embeddings, self-attention, cross-attention over the memory, reused target layers, head.

State: weights only; what one conversation has seen is in `DraftState`. All rows of a call are nodes of one draft (or
a run of committed tokens), [rows, hidden size]: a device drafts for one conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Rotary, Stack, StackShape

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.weights import check_tables, draft_ids
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.drafter.layers.bridged_layers import BridgedLayers
from moa_shared.drafter.layers.reused_layers import ReusedLayers
from moa_shared.drafter.layers.target_parts import TargetParts
from moa_shared.models.network.layers import Weights, offset_norm, read_layer
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM

Numbers = npt.NDArray[np.int32]
_MLP = ("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class DraftDecoder:
    """Computes drafts.

    Args:
        config: of the drafter.
        own: the checkpoint's tensors.
        target: the target's embeddings, head and, where layers are reused, these and the final norm.
        weights: "int8", or "float32" for a reference.
        parts: of the target, where other drafters run them too.
        states_from: the layer that the states which come enter, where it is an earlier one than the first reused layer.

    Raises:
        ConfigError: other `weights`.
        ModelSourceError: a part of the target has another shape than the drafter needs.
        KernelError: weights that the kernels cannot use.
    """

    def __init__(
        self,
        config: DrafterConfig,
        own: Weights,
        target: Weights,
        weights: str,
        *,
        parts: TargetParts | None = None,
        states_from: int | None = None,
    ) -> None:
        check_tables(target, config.vocab_size, config.hidden_size)
        self.config = config
        parts = parts or TargetParts(target)
        plan = parts.plan if config.reused_layers else None
        last = range(config.target_layers - config.reused_layers, config.target_layers)
        reused_inner = 0
        if last:
            reused_inner = (
                plan.shape.inner if plan else target.shape(f"model.layers.{last.start}.mlp.gate_proj.weight")[0]
            )
        sizes = (config.hidden_size, config.target_head_dim, config.sa_mlp, config.ca_mlp, reused_inner)
        self.arithmetic = arithmetic = Arithmetic.of(weights, sizes)
        rotary = Rotary(config.target_head_dim, config.rope_parameters)
        self._memory_rotary = rotary
        if config.unscaled_memory_rope:
            self._memory_rotary = Rotary(config.target_head_dim, config.memory_rope)
        self.self_attention = arithmetic.stack(
            self._shape(config.sa_kv_heads, config.sa_mlp),
            [read_layer(own, "self_attention", arithmetic.linear)],
            rotary,
        )
        self.cross_attention: Stack | None = None
        if config.ca:
            layer = read_layer(own, "cross_attention", arithmetic.linear, reads_memory=True)
            shape = self._shape(config.ca_kv_heads, config.ca_mlp, reads_memory=True)
            self.cross_attention = arithmetic.stack(shape, [layer], self._memory_rotary)
            self._bare_mlp = layer.mlp_norm, *layer.mlp
        else:
            norm, gate, up, down = (own.array(f"cross_attention.{each}.weight") for each in _MLP)
            self._bare_mlp = norm, arithmetic.linear([gate, up]), arithmetic.linear([down])
        self.reused: Stack | None = None
        self.bridge: Stack | None = None  # from the layer whose states come to the first reused one
        self._norm: Rows | None = None
        if last:
            shape = plan.shape if plan else self._shape(config.target_kv_heads, reused_inner)
            rotaries = plan.rotaries if plan else (rotary,)
            self.reused = arithmetic.stack(shape, parts.layers(last, arithmetic), rotaries)
            if states_from is not None and states_from < last.start:
                between = parts.layers(range(states_from, last.start), arithmetic)
                self.bridge = arithmetic.stack(shape, between, rotaries)
            self._norm = target.array(FINAL_NORM)
            if plan:
                self._norm = offset_norm(self._norm, plan.description)
        elif config.output_norm:
            self._norm = own.array("output_norm.weight")
        self._logits_of = plan.logits if plan else None
        self.draft_ids = draft_ids(own)
        self._target = target
        self._head = parts.head(self.draft_ids, arithmetic)

    def _shape(self, kv_heads: int, inner: int, *, reads_memory: bool = False) -> StackShape:
        config = self.config
        return StackShape(
            config.hidden_size,
            inner,
            config.target_heads,
            kv_heads,
            config.target_head_dim,
            config.rms_norm_eps,
            reads_memory,
        )

    def embed(self, tokens: Sequence[int]) -> Rows:
        """Token ids to [rows, hidden size]."""
        return self._target.rows(EMBEDDINGS, tokens)

    def features(self, x: Rows) -> Rows:
        """The head's input, from the last layer's rows."""
        return x if self._norm is None else self.arithmetic.norm(x, self._norm, self.config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (post-norm feature) to [rows, draft vocab]."""
        logits = self._head(features)
        return logits if self._logits_of is None else self._logits_of(logits)

    def new_cache(self, stack: Stack) -> Cache:
        """An empty cache for one conversation's rows of one of the stacks."""
        return stack.new_cache(kv=self.arithmetic.kv)

    def new_reused(self) -> ReusedLayers | None:
        """The reused layers of one conversation; None: there are none."""
        if self.reused is None:
            return None
        kv = self.arithmetic.kv
        if self.bridge is None:
            return ReusedLayers(self.reused, kv=kv)
        return BridgedLayers(self.reused, self.bridge, kv=kv)

    def remember(self, cache: Cache, rows: Rows, positions: Numbers) -> None:
        """Appends wire rows, [rows, memory width], to those that cross-attention reads; keys are rotated here."""
        split = rows.reshape(len(rows), 2, -1, self.config.target_head_dim)
        cache.write(0, self._memory_rotary.rotate(split[:, 0], positions), split[:, 1])
        cache.length += len(rows)

    def without_memory(self, x: Rows) -> Rows:
        """Cross-attention before any memory row has come, or where there is none: only its MLP acts."""
        norm, gate_up, down = self._bare_mlp
        normed = x if norm is None else self.arithmetic.norm(x, norm, self.config.rms_norm_eps)
        gate, up = np.split(gate_up(normed), 2, axis=-1)
        inner: Rows = gate / (1 + np.exp(-np.maximum(gate, np.float32(-88)))) * up
        return x + down(inner)
