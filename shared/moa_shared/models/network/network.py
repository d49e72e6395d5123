"""A target over the kernels: embeddings, decoder layers, final norm and head, for the rows of several sessions at once.

State: weights only. Invariant: with quantised weights a row's logits have the same bits whatever is computed with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_kernels import F16, Cache, KernelError, Linear, Segment, Stack, norm

from moa_shared.models.network.layers import LayerEmbeddings, Rows, Weights, offset_norm, read_layer, read_matrix
from moa_shared.models.network.plan import plan_of
from moa_shared.models.network.served import unsupported
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD
from moa_shared.programs.progress import Progress, SilentProgress


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    logits: Rows  # [rows asked, vocab] float32
    hidden: Rows  # [rows asked, hidden size] float32, after the final norm
    states: Mapping[int, Rows]  # [rows, hidden size] float32 entering each layer asked for


class Network:
    """A model of a family that is described.

    `plain`: float32 weights and activations (the reference; slow). `context`: the most positions that texts have; 0: as
    many as the model was made for. What the kernels do not compute is a ModelSourceError.
    """

    def __init__(
        self,
        weights: Weights,
        config: Mapping[str, Any],
        progress: Progress | None = None,
        *,
        plain: bool = False,
        context: int = 0,
    ) -> None:
        count = int(config["num_hidden_layers"])
        with (progress or SilentProgress()).task("Packing weights", count + 1) as task:
            try:
                make_linear = partial(Linear, plain=plain)
                self.plan = plan = plan_of(config, context)
                layers = []
                for index, each in enumerate(plan.layers):
                    prefix = f"model.layers.{index}"
                    layers.append(read_layer(weights, prefix, make_linear, family=plan.family, plan=each))
                    task.advance(1)
                self.stack = Stack(plan.shape, layers, plan.rotaries)
                width, eps = plan.shape.embedding, plan.shape.eps
                self._embeddings = LayerEmbeddings(weights, make_linear, count, width, eps) if width else None
                self._head = make_linear([read_matrix(weights, HEAD)])
                task.advance(1)
            except KernelError as error:
                raise unsupported(error, config) from error
        self._weights = weights
        self._norm = offset_norm(weights.array(FINAL_NORM), plan.family)
        self.vocab_size, self.hidden_size, self.layer_count = self._head.outputs, self._head.inputs, count

    def new_cache(self, *, kv: str = F16) -> Cache:
        """An empty cache for one session. `kv`: how keys and values are kept: one of `moa_kernels.KV_FORMATS`."""
        return self.stack.new_cache(kv=kv)

    def different_layers(self) -> list[int]:
        """The first layer of each kind (window, angles, norms, experts, sizes), the last, and those that these read."""
        kinds: dict[tuple[object, ...], int] = {}
        for index, layer in enumerate(self.stack.layers):
            norms = layer.attention_norm, layer.attention_out_norm, layer.mlp_norm, layer.mlp_out_norm, layer.query_norm
            has_norms = tuple(norm is not None for norm in norms)
            angles = layer.rotary is None, layer.rotary == 0
            sizes = layer.heads, layer.inner, layer.keys_are_values, layer.reads_layer is None, layer.out_scale == 1
            kinds.setdefault((layer.window > 0, *angles, layer.experts is not None, *has_norms, *sizes), index)
        found = {*kinds.values(), self.layer_count - 1}
        read = {self.stack.layers[index].reads_layer for index in found} - {None}
        return sorted(found | {index for index in read if index is not None})

    def shortened(self) -> Network:
        """The network with only its `different_layers`, over the same weights: what it takes to test the arithmetic."""
        short, kept = copy.copy(self), self.different_layers()
        layers = [
            each if each.reads_layer is None else replace(each, reads_layer=kept.index(each.reads_layer))
            for each in (self.stack.layers[index] for index in kept)
        ]
        short.stack, short.layer_count = Stack(self.plan.shape, layers, self.plan.rotaries), len(layers)
        short._embeddings = self._embeddings and self._embeddings.of_layers(kept)
        return short

    def forward(
        self,
        tokens: Sequence[int],
        segments: Sequence[Segment],
        logits_for: Sequence[int] | npt.NDArray[np.int64],
        state_layers: Sequence[int] = (),
    ) -> NetworkOutput:
        """Runs the rows of all segments, whose caches' `length` the caller moves on afterwards.

        `logits_for`: rows whose logits and hidden state are wanted. `state_layers`: also give the rows that enter
        these; as many as there are layers: what leaves the last.
        """
        x, states = self.hidden(tokens, segments, state_layers)
        hidden = self.normed(x[np.asarray(logits_for, np.int64)])
        return NetworkOutput(self.logits(hidden), hidden, states)

    def hidden(
        self, tokens: Sequence[int], segments: Sequence[Segment], state_layers: Sequence[int] = ()
    ) -> tuple[Rows, dict[int, Rows]]:
        """As `forward`, without head: what leaves the last layer, and the states asked for; [rows, hidden size]."""
        rows = self._weights.rows(EMBEDDINGS, tokens)
        if self.plan.embedding_scale != 1:
            rows = rows * np.float32(self.plan.embedding_scale)
        embeddings = None if self._embeddings is None else self._embeddings(tokens, rows)
        return self.stack.run(rows, segments, state_layers, embeddings)

    def logits(self, hidden: Rows) -> Rows:
        """[rows, hidden size] after the final norm to [rows, vocab]."""
        return self.plan.logits(self._head(hidden))

    def normed(self, rows: Rows) -> Rows:
        """The final norm of what leaves the last layer, [rows, hidden size]: what the head takes."""
        return norm(rows, self._norm, self.stack.shape.eps)
