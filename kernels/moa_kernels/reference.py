"""The same computations in numpy: what the kernels are tested against, and what a device without them drafts with.

Weights are float32 and activations are not rounded, so it is as exact as float32, but slow, and its bits depend on what
is computed together: it may draft, but no text is decided with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moa_kernels.blocks import Rows
from moa_kernels.errors import KernelError
from moa_kernels.rotary import rotated
from moa_kernels.transformer.cache import Cache

if TYPE_CHECKING:
    from moa_kernels.rotary import Table
    from moa_kernels.transformer.segment import Numbers, Segment
    from moa_kernels.transformer.stack import Layer, Stack


class ReferenceCache(Cache):
    """Keys and values in one array [layers, rows, kv_heads, 2, head_dim], of any head dimension."""

    _head_divisor = 1

    def __init__(self, layers: int, kv_heads: int, head_dim: int, *, half: bool) -> None:
        super().__init__(layers, kv_heads, head_dim, half=half)
        self.rows = np.zeros((layers, 0, kv_heads, 2, head_dim), np.float16 if half else np.float32)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def most_nbytes(self, rows: int) -> int:
        return 2 * rows * self.layers * self.kv_heads * 2 * self.head_dim * self.rows.itemsize

    def release(self) -> None:
        self.length = 0
        self.rows = self.rows[:, :0].copy()

    def reserve(self, rows: int) -> None:
        held = self.rows.shape[1]
        if rows > held:
            room = np.zeros((self.layers, max(rows, 2 * held) - held, *self.rows.shape[2:]), self.rows.dtype)
            self.rows = np.concatenate((self.rows, room), axis=1)

    def write(self, layer: int, keys: Rows, values: Rows) -> None:
        self._check_rows(layer, keys, values)
        self.put(layer, self.length, keys, values)

    def put(self, layer: int, slot: int, keys: Rows, values: Rows) -> None:
        """Writes rows from `slot` on."""
        self.reserve(slot + len(keys))
        self.rows[layer, slot : slot + len(keys)] = np.stack((keys, values), axis=2)

    def read(self, start: int, stop: int) -> Rows:
        self._check_read(start, stop)
        out: Rows = self.rows[:, start:stop].swapaxes(0, 1).astype(np.float32)
        return out

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        self._check_kept(start, rows)
        self.rows[:, start : start + len(rows)] = self.rows[:, [start + row for row in rows]]
        self.length = start + len(rows)

    def move_last(self, rows: int, by: int) -> None:
        self._check_moved(rows, by)
        stop = self.length
        self.reserve(stop + by)
        self.rows[:, stop - rows + by : stop + by] = self.rows[:, stop - rows : stop].copy()
        self.length = stop + by


def run(
    stack: Stack,
    rows: Rows,
    segments: Sequence[Segment],
    positions: Numbers,
    cosines: Table,
    sines: Table,
    state_layers: Sequence[int],
    only_fills: bool,
) -> tuple[Rows, dict[int, Rows]]:
    """As `Stack.run`, which has checked its arguments."""
    x = rows.astype(np.float32)
    states: dict[int, Rows] = {}
    starts = np.cumsum([0, *(segment.rows for segment in segments)])
    for index, layer in enumerate(stack.layers):
        if index in state_layers:
            states[index] = x.copy()
        queries, keys, values = _project(stack, layer, x, cosines[positions][:, None], sines[positions][:, None])
        if only_fills and index == len(stack.layers) - 1:
            for segment, start in zip(segments, starts[:-1], strict=True):
                own = slice(start, start + segment.rows)
                _own_cache(segment).put(index, segment.first_slot, keys[own], values[own])
            return x, states
        attended = np.empty((len(x), stack.shape.heads * stack.shape.head_dim), np.float32)
        for segment, start in zip(segments, starts[:-1], strict=True):
            own = slice(start, start + segment.rows)
            cache = _own_cache(segment)
            if not stack.shape.reads_memory:
                cache.put(index, segment.first_slot, keys[own], values[own])
            for row in range(segment.rows):
                attended[start + row] = _attend(cache, index, segment, row, queries[start + row])
        x = x + layer.out(attended)
        gate, up = np.split(layer.gate_up(norm(x, layer.mlp_norm, stack.shape.eps)), 2, axis=-1)
        x = x + layer.down(gate / (1 + np.exp(-np.maximum(gate, np.float32(-88)))) * up)
    if len(stack.layers) in state_layers:
        states[len(stack.layers)] = x.copy()
    return x, states


def _own_cache(segment: Segment) -> ReferenceCache:
    if not isinstance(segment.cache, ReferenceCache):
        raise KernelError("A cache of the kernels was used without kernels.")
    return segment.cache


def norm(rows: Rows, weight: Rows, eps: float) -> Rows:
    """Root-mean-square norm over the last axis."""
    squares = (rows * rows).mean(axis=-1, keepdims=True, dtype=np.float32)
    out: Rows = rows / np.sqrt(squares + np.float32(eps)) * weight
    return out


def _project(stack: Stack, layer: Layer, x: Rows, cosines: Rows, sines: Rows) -> tuple[Rows, Rows, Rows]:
    shape = stack.shape
    normed = x if layer.attention_norm is None else norm(x, layer.attention_norm, shape.eps)
    split = layer.qkv(normed).reshape(len(x), -1, shape.head_dim)
    queries, keys, values = np.split(split, [shape.heads, split.shape[1] - (split.shape[1] - shape.heads) // 2], axis=1)
    if layer.query_norm is not None:
        queries = norm(queries, layer.query_norm, shape.eps)
    if layer.key_norm is not None:
        keys = norm(keys, layer.key_norm, shape.eps)
    return rotated(queries, cosines, sines), rotated(keys, cosines, sines), values


def _attend(cache: ReferenceCache, layer: int, segment: Segment, row: int, queries: Rows) -> Rows:
    """[heads * head_dim] of one row."""
    tail = segment.tail[segment.tail_start[row] : segment.tail_start[row + 1]]
    slots = np.concatenate((np.arange(segment.seen[row]), tail))
    held = cache.rows[layer, slots].astype(np.float32)  # [slots, kv_heads, 2, head_dim]
    grouped = queries.reshape(cache.kv_heads, -1, cache.head_dim)
    scores = np.einsum("hgd,shd->hgs", grouped, held[:, :, 0]) / np.sqrt(np.float32(cache.head_dim))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Rows = np.einsum("hgs,shd->hgd", weights, held[:, :, 1]).reshape(-1)
    return out
