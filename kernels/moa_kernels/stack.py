"""Decoder layers that run one after the other over the rows of several sessions at once.

Matrix products take all rows together, attention is each session's own. State: weights only; keys and values are in the
sessions' caches. Invariant: a row's bits do not depend on what else is in the call.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moa_kernels import reference
from moa_kernels.bindings import CLayer, CSegment, CStack, address
from moa_kernels.blocks import Rows
from moa_kernels.cache import LANES, Cache
from moa_kernels.errors import KernelError
from moa_kernels.library import library
from moa_kernels.linear import Linear, vector
from moa_kernels.rotary import Rotary
from moa_kernels.segment import Segment
from moa_kernels.threads import threads


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers of a stack have.

    Args:
        inner: width of the MLP.
        eps: of the norms.
        reads_memory: keys and values come from elsewhere; `qkv` of the layers holds queries alone.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    reads_memory: bool = False

    def check(self) -> None:
        """Raises KernelError for sizes that the kernels do not take."""
        if self.heads % self.kv_heads:
            raise KernelError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly.")
        for name, size, divisor in (
            ("hidden size", self.hidden, 32),
            ("MLP width", self.inner, 32),
            ("head dimension", self.head_dim, 2 * LANES),
        ):
            if size % divisor:
                raise KernelError(f"The {name} is {size}, which is no multiple of {divisor}.")


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer (Llama, Qwen2 with biases, Qwen3 with norms of queries and keys).

    Args:
        attention_norm, mlp_norm: [hidden].
        qkv: queries, keys and values of all heads side by side; `gate_up` alike.
        query_norm, key_norm: [head_dim].
    """

    attention_norm: Rows
    qkv: Linear
    out: Linear
    mlp_norm: Rows
    gate_up: Linear
    down: Linear
    query_norm: Rows | None = None
    key_norm: Rows | None = None


class Stack:
    """Layers that share a cache.

    Args:
        rotary: angles of positions.

    Raises:
        KernelError: sizes that the kernels do not take, or layers that do not have them.
    """

    def __init__(self, shape: StackShape, layers: Sequence[Layer], rotary: Rotary) -> None:
        shape.check()
        self.shape, self.rotary = shape, rotary
        self.layers = tuple(layers)
        self._vectors: list[Rows] = []  # what the C structures point to
        for layer in self.layers:
            self._check(layer)
        if library() is not None:
            self._c_layers = (CLayer * len(self.layers))(*(self._c_layer(layer) for layer in self.layers))

    def new_cache(self, *, half: bool) -> Cache:
        """An empty cache for one session."""
        kind = Cache if library() is not None else reference.ReferenceCache
        return kind(len(self.layers), self.shape.kv_heads, self.shape.head_dim, half=half)

    def run(
        self, rows: Rows, segments: Sequence[Segment], state_layer: int | None = None
    ) -> tuple[Rows, Rows | None]:
        """Runs all layers; the new rows are written behind the caches' `length`, which the caller moves on afterwards.

        Args:
            rows: [rows of all segments, hidden] float32; left as it is.
            state_layer: also give the rows that enter this layer; as many as there are layers: what leaves the last.

        Returns:
            what leaves the last layer, [rows, hidden] float32, and the state asked for.

        Raises:
            KernelError: rows or segments that do not fit this stack.
            MemoryError: the caches cannot grow, or there is no memory for the forward.
        """
        self._check_call(rows, segments, state_layer)
        for segment in segments:
            if not self.shape.reads_memory:
                segment.cache.reserve(segment.first_slot + segment.rows)
        positions = np.concatenate([segment.positions for segment in segments])
        cosines, sines = self.rotary.tables(int(positions.max(initial=0)) + 1)
        loaded = library()
        if loaded is None:
            return reference.run(self, rows, segments, positions, cosines, sines, state_layer)
        out = np.array(rows, np.float32, order="C", copy=True)
        state = None if state_layer is None else np.empty_like(out)
        c_segments = (CSegment * len(segments))(
            *(
                CSegment(
                    each.rows,
                    each.first_slot,
                    each.cache.table,
                    address(each.seen),
                    address(each.tail_start),
                    address(each.tail),
                )
                for each in segments
            )
        )
        shape = self.shape
        c_stack = CStack(
            shape.hidden,
            shape.inner,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            len(self.layers),
            int(segments[0].cache.half) if segments else 0,
            int(shape.reads_memory),
            shape.eps,
            self._c_layers,
        )
        failed = loaded.moa_run(
            ct.byref(c_stack),
            len(out),
            address(out),
            address(positions),
            address(cosines),
            address(sines),
            len(segments),
            c_segments,
            -1 if state_layer is None else state_layer,
            address(state),
            threads(),
        )
        if failed:
            raise MemoryError("There is no memory for a forward.")
        return out, state

    def _check(self, layer: Layer) -> None:
        shape = self.shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        wide = queries if shape.reads_memory else queries + 2 * keys
        expected = {
            "qkv": (layer.qkv, wide, shape.hidden),
            "out": (layer.out, shape.hidden, queries),
            "gate_up": (layer.gate_up, 2 * shape.inner, shape.hidden),
            "down": (layer.down, shape.hidden, shape.inner),
        }
        for name, (linear, outputs, inputs) in expected.items():
            if (linear.outputs, linear.inputs) != (outputs, inputs):
                raise KernelError(
                    f"{name} has the shape [{linear.outputs}, {linear.inputs}], expected [{outputs}, {inputs}]."
                )
        for name, norm, width in (
            ("attention_norm", layer.attention_norm, shape.hidden),
            ("mlp_norm", layer.mlp_norm, shape.hidden),
            ("query_norm", layer.query_norm, shape.head_dim),
            ("key_norm", layer.key_norm, shape.head_dim),
        ):
            if norm is not None and norm.shape != (width,):
                raise KernelError(f"{name} has the shape {norm.shape}, expected ({width},).")

    def _check_call(self, rows: Rows, segments: Sequence[Segment], state_layer: int | None) -> None:
        shape = self.shape
        count = sum(segment.rows for segment in segments)
        if rows.shape != (count, shape.hidden) or not count:
            raise KernelError(f"Rows of the shape {rows.shape} came for segments of {count} rows of {shape.hidden}.")
        if state_layer is not None and not 0 <= state_layer <= len(self.layers):
            raise KernelError(f"The state of layer {state_layer} was asked of a stack of {len(self.layers)} layers.")
        for segment in segments:
            cache = segment.cache
            if (cache.layers, cache.kv_heads, cache.head_dim) != (len(self.layers), shape.kv_heads, shape.head_dim):
                raise KernelError("A segment's cache belongs to another stack.")
            if cache.half != segments[0].cache.half:
                raise KernelError("The caches of one forward have different precisions.")
            segment.check(writes=not shape.reads_memory)

    def _c_layer(self, layer: Layer) -> CLayer:
        norms = [
            None if norm is None else vector(norm)
            for norm in (layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
        ]
        self._vectors += [norm for norm in norms if norm is not None]
        return CLayer(*map(address, norms), layer.qkv.c, layer.out.c, layer.gate_up.c, layer.down.c)
