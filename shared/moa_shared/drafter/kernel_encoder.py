"""The server's half by the kernels: what `encoder.py` computes in torch, for servers without it.

Layer self-attention is a layer of one stack whose rows are the target's layers: each token is a session of its own, and
every row of it sees all of them. State: weights, and a cache for each token of a pass.
"""

from __future__ import annotations

import numpy as np
from moa_kernels import F32, Cache, Rotary, Segment, Stack, StackShape

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.errors import InternalError
from moa_shared.models.network.layers import Weights, read_layer

_BATCH = 16  # tokens a pass: 480 rows of a target with 30 layers


class KernelEncoder:
    """Encodes newly verified tokens; for one thread at a time.

    Args:
        own: the checkpoint's tensors.
        weights: "int8", or "float32" for a reference.

    Raises:
        ConfigError: other weights.
    """

    def __init__(self, config: DrafterConfig, own: Weights, weights: str) -> None:
        self.config = config
        width, head_dim = config.kv_width, config.kv_width // config.lsa_heads
        sizes = (config.hidden_size, width, head_dim, config.lsa_mlp) if config.lsa else (config.hidden_size,)
        self.arithmetic = arithmetic = Arithmetic.of(weights, sizes)
        self._norm = own.array("cross_attention.input_layernorm.weight")
        self._keys_values = arithmetic.linear(
            [own.array(f"cross_attention.self_attn.{which}_proj.weight") for which in "kv"]
        )
        self._stack: Stack | None = None
        self._caches: list[Cache] = []
        if config.lsa:
            shape = StackShape(
                width, config.lsa_mlp, config.lsa_heads, config.lsa_kv_heads, head_dim, config.rms_norm_eps
            )
            layer = read_layer(own, "layer_self_attention", arithmetic.linear)
            self._stack = arithmetic.stack(shape, [layer], Rotary(head_dim, config.memory_rope))
            self._to_hidden = arithmetic.linear([own.array("Ekv2E.weight")], own.array("Ekv2E.bias"))
        if config.state_entries:
            self._to_hidden = arithmetic.linear([own.array("fc.weight")])

    def memory(self, kv: Rows) -> Rows:
        """[tokens, hidden size] from keys and values [tokens, layers, KV width] (interleaved by KV head)."""
        parts = [
            self._to_hidden(self._mean_over_layers(kv[start : start + _BATCH])) for start in range(0, len(kv), _BATCH)
        ]
        return np.concatenate(parts)

    def project(self, memory: Rows) -> Rows:
        """Wire rows from memory rows (without LSA from the target's last hidden state): [tokens, memory width],
        un-rotated keys then values.
        """
        return self._keys_values(self.arithmetic.norm(memory, self._norm, self.config.rms_norm_eps))

    def encode_states(self, states: Rows) -> Rows:
        """Wire rows from the target's states, [tokens, entries * hidden size], entry after entry."""
        return self.project(self._to_hidden(states))

    def encode(self, kv: Rows) -> Rows:
        """`project` of `memory`; no rows for no tokens."""
        return self.project(self.memory(kv)) if len(kv) else np.empty((0, self.config.memory_width), np.float32)

    def _mean_over_layers(self, kv: Rows) -> Rows:
        tokens, layers, width = kv.shape
        stack = self._stack
        if stack is None:
            raise InternalError("Layer self-attention was requested from a drafter without it.")
        while len(self._caches) < tokens:
            self._caches.append(stack.new_cache(kv=F32))
        numbers = np.arange(layers, dtype=np.int32)
        everything, no_tails = np.full(layers, layers, np.int32), np.zeros(layers + 1, np.int32)
        segments = [Segment(cache, 0, numbers, everything, no_tails, numbers[:0]) for cache in self._caches[:tokens]]
        out, _ = stack.run(kv.reshape(tokens * layers, width), segments)
        mean: Rows = out.reshape(tokens, layers, width).mean(axis=1)
        return mean
