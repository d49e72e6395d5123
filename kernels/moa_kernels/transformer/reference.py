"""A stack computed in numpy: what the kernels are tested against, and what a device without them drafts with.

Weights are float32 and activations are not rounded, so it is as exact as float32, but slow, and its bits depend on what
is computed together: it may draft, but no text is decided with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moa_kernels.bindings import F16, Q8, KernelError
from moa_kernels.blocks import Rows, capped, norm
from moa_kernels.rotary import Table, rotated
from moa_kernels.transformer.cache import Cache, Heads, Numbers, Segment
from moa_kernels.transformer.layer import Experts, Layer, LayerEmbedding, StackShape


class ReferenceCache(Cache):
    """Keys and values in an array [rows, heads, 2, their numbers] for each layer, of any size of a head.

    Of 8 bits it holds what they stand for, in float32.
    """

    _head_divisor = 1

    def __init__(self, heads: Sequence[Heads], *, kv: str) -> None:
        super().__init__(heads, kv=kv)
        self.rows = [np.zeros((0, count, 2, dim), np.float16 if kv == F16 else np.float32) for count, dim in heads]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)

    def most_nbytes(self, rows: int) -> int:
        return 2 * rows * sum(heads.width for heads in self.heads) * self.rows[0].itemsize

    def release(self) -> None:
        self.length = 0
        self.rows = [rows[:0].copy() for rows in self.rows]

    def reserve(self, rows: int) -> None:
        held = len(self.rows[0])
        if rows > held:
            more = max(rows, 2 * held) - held
            self.rows = [np.concatenate((own, np.zeros((more, *own.shape[1:]), own.dtype))) for own in self.rows]

    def write(self, layer: int, keys: Rows, values: Rows) -> None:
        self._check_rows(layer, keys, values)
        self.put(layer, self.length, keys, values)

    def put(self, layer: int, slot: int, keys: Rows, values: Rows) -> None:
        self.reserve(slot + len(keys))
        rows = np.stack((keys, values), axis=2).astype(np.float32, copy=False)
        self.rows[layer][slot : slot + len(keys)] = _in_8_bits(rows) if self.kv == Q8 else rows

    def _read(self, out: Rows, layers: range, start: int) -> None:
        for place, layer in enumerate(layers):
            width = self.heads[layer].width
            out[:, place, :width] = self.rows[layer][start : start + len(out)].reshape(-1, width)

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        self._check_kept(start, rows)
        for own in self.rows:
            own[start : start + len(rows)] = own[[start + row for row in rows]]
        self.length = start + len(rows)

    def move_last(self, rows: int, by: int) -> None:
        self._check_moved(rows, by)
        stop = self.length
        self.reserve(stop + by)
        for own in self.rows:
            own[stop - rows + by : stop + by] = own[stop - rows : stop].copy()
        self.length = stop + by


def _in_8_bits(rows: Rows) -> Rows:
    """Each row of [..., head_dim] rounded to 8 bits with a scale of its own."""
    largest = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(rows * (np.float32(127) / largest))
    return np.asarray(codes * (largest / np.float32(127)), np.float32)


@dataclass(frozen=True, slots=True)
class ReferenceStack:
    """The layers of a `Stack`. `cached`: of each layer the one of the cache that it reads."""

    shape: StackShape
    layers: Sequence[Layer]
    cached: Sequence[int]

    def run(
        self,
        rows: Rows,
        embeddings: Rows | None,
        segments: Sequence[Segment],
        positions: Numbers,
        tables: Sequence[tuple[Table, Table]],
        factors: Table | None,
        state_layers: Sequence[int],
        only_fills: bool,
    ) -> tuple[Rows, dict[int, Rows]]:
        x = rows.astype(np.float32)
        states: dict[int, Rows] = {}
        starts = np.cumsum([0, *(segment.rows for segment in segments)])
        for index, layer in enumerate(self.layers):
            if index in state_layers:
                states[index] = x.copy()
            queries, keys, values = self._project(layer, self._read(layer, x, embeddings, index))
            if layer.rotary is not None:
                cosines, sines = (table[positions][:, None] for table in tables[layer.rotary])
                queries, keys = rotated(queries, cosines, sines), rotated(keys, cosines, sines)
            queries = queries * np.float32(self.shape.query_scale(layer.heads_in(self.shape).dim))
            if factors is not None:
                queries = queries * factors[:, None, None]
            if only_fills and index == len(self.layers) - 1:
                for segment, start in zip(segments, starts[:-1], strict=True):
                    own = slice(start, start + segment.rows)
                    _own_cache(segment).put(self.cached[index], segment.first_slot, keys[own], values[own])
                return x, states
            attended = np.empty((len(x), layer.out.inputs), np.float32)
            for segment, start in zip(segments, starts[:-1], strict=True):
                own = slice(start, start + segment.rows)
                cache = _own_cache(segment)
                if not self.shape.reads_memory and layer.reads_layer is None:
                    cache.put(self.cached[index], segment.first_slot, keys[own], values[own])
                for row in range(segment.rows):
                    attended[start + row] = self._attend(cache, index, segment, row, queries[start + row])
            x = x + self._normed(layer.out(attended), layer.attention_out_norm) * np.float32(self.shape.residual_scale)
            x = x + self._mlp(layer, x)
            if layer.embedding is not None and embeddings is not None:
                x = x + self._embedding(layer.embedding, x, embeddings[:, index])
            x = x * np.float32(layer.out_scale)
        if len(self.layers) in state_layers:
            states[len(self.layers)] = x.copy()
        return x, states

    def _normed(self, rows: Rows, weight: Rows | None) -> Rows:
        return rows if weight is None else norm(rows, weight, self.shape.eps)

    def _read(self, layer: Layer, x: Rows, embeddings: Rows | None, index: int) -> Rows:
        """What attention reads: the normed rows, after the layer's own embeddings where it reads these too."""
        normed = self._normed(x, layer.attention_norm)
        if layer.attention_embedding_norm is None or embeddings is None:
            return normed
        return np.concatenate((self._normed(embeddings[:, index], layer.attention_embedding_norm), normed), axis=-1)

    def _project(self, layer: Layer, read: Rows) -> tuple[Rows, Rows, Rows]:
        heads = self.shape.heads
        split = layer.qkv(read)
        split = split.reshape(len(read), -1, layer.heads_in(self.shape).dim)
        kv_heads = split.shape[1] - heads
        queries, keys, values = np.split(
            split, [heads, heads + (kv_heads if layer.keys_are_values else kv_heads // 2)], 1
        )
        if layer.keys_are_values:
            values = keys
        queries, keys, values = (
            self._normed_heads(queries, layer.query_norm),
            self._normed_heads(keys, layer.key_norm),
            self._normed_heads(values, layer.value_norm),
        )
        if most := self.shape.qkv_clip:
            queries, keys, values = (np.clip(each, -most, most) for each in (queries, keys, values))
        return queries, keys, values

    def _normed_heads(self, heads: Rows, weight: Rows | None) -> Rows:
        """[rows, heads, head_dim] normed head by head, or over all heads where the weight is as wide."""
        if weight is None or len(weight) == heads.shape[-1]:
            return self._normed(heads, weight)
        return norm(heads.reshape(len(heads), -1), weight, self.shape.eps).reshape(heads.shape)

    def _attend(self, cache: ReferenceCache, layer: int, segment: Segment, row: int, queries: Rows) -> Rows:
        """[heads * head_dim] of one row, whose queries are scaled."""
        tail = segment.tail[segment.tail_start[row] : segment.tail_start[row + 1]]
        slots = np.concatenate((np.arange(segment.seen[row]), tail))
        window = self.layers[layer].window
        if window:
            slots = slots[-window:]
        held = cache.rows[self.cached[layer]][slots].astype(np.float32)  # [slots, heads, 2, their numbers]
        grouped = queries.reshape(held.shape[1], -1, held.shape[3])
        scores = np.einsum("hgd,shd->hgs", grouped, held[:, :, 0])
        if self.shape.score_cap:
            scores = capped(scores, self.shape.score_cap)
        sinks = self.layers[layer].sinks
        if sinks is not None:
            scores = np.concatenate((scores, sinks.reshape(*scores.shape[:2], 1)), axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        weights = weights[..., : len(slots)]
        out: Rows = np.einsum("hgs,shd->hgd", weights, held[:, :, 1]).reshape(-1)
        return out

    def _mlp(self, layer: Layer, x: Rows) -> Rows:
        normed = x if layer.mlp_norm is None else norm(x, layer.mlp_norm, self.shape.eps)
        out = np.zeros_like(x)
        if layer.gate_up is not None:
            gate_up, down = layer.mlp
            out = down(self._gated(gate_up(normed)))
        if layer.beside is not None and layer.experts is not None:
            norms = layer.beside
            scores = layer.experts.router(norm(x, norms.router, self.shape.eps))
            given = self._mixed(layer.experts, norm(x, norms.experts, self.shape.eps), scores)
            out = norm(out, norms.mlp_out, self.shape.eps) + norm(given, norms.experts_out, self.shape.eps)
        elif layer.experts is not None:
            out = self._mixed(layer.experts, normed, layer.experts.router(normed))
        if layer.mlp_out_norm is not None:
            out = norm(out, layer.mlp_out_norm, self.shape.eps)
        return out * np.float32(self.shape.residual_scale)

    def _mixed(self, experts: Experts, rows: Rows, scores: Rows) -> Rows:
        numbers, weights = experts.choose(scores)
        out = np.zeros_like(rows)
        for number in np.unique(numbers):
            chosen, rank = np.nonzero(numbers == number)
            gate_up, down = experts.pair(int(number))
            out[chosen] += down(self._gated(gate_up(rows[chosen]))) * weights[chosen, rank, None]
        return out

    def _embedding(self, embedding: LayerEmbedding, x: Rows, own: Rows) -> Rows:
        out = norm(embedding.out(self._activated(embedding.gate(x), own)), embedding.norm, self.shape.eps)
        return out * np.float32(self.shape.residual_scale)

    def _gated(self, gate_up: Rows) -> Rows:
        return self._activated(*np.split(gate_up, 2, axis=-1))

    def _activated(self, gate: Rows, up: Rows) -> Rows:
        slope = gate
        if self.shape.activation == "gelu_tanh":
            slope = np.float32(1.5957691216) * gate * (1 + np.float32(0.044715) * gate**2)
        elif self.shape.activation == "clamped_swiglu":
            limit = np.float32(self.shape.gate_limit)
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + 1
            slope = np.float32(self.shape.gate_slope) * gate
        out: Rows = gate / (1 + np.exp(-np.maximum(slope, np.float32(-88)))) * up
        return out


def _own_cache(segment: Segment) -> ReferenceCache:
    if not isinstance(segment.cache, ReferenceCache):
        raise KernelError("A cache of the kernels was used without kernels.")
    return segment.cache
