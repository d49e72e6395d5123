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
from moa_kernels.transformer.cache import Cache, Heads
from moa_kernels.transformer.layer import DeltaNet, Experts, Layer, LayerEmbedding, StackShape
from moa_kernels.transformer.segment import Segment
from moa_kernels.transformer.states import Drafted, Numbers, States, StateShape


class ReferenceCache(Cache):
    """Keys and values in an array [rows, heads, 2, their numbers] for each layer, of any size of a head.

    Of 8 bits it holds what they stand for, in float32.
    """

    def __init__(self, heads: Sequence[Heads], *, kv: str, states: Sequence[StateShape] = ()) -> None:
        super().__init__(heads, kv=kv, states=states)
        self.rows = [np.zeros((0, count, 2, dim), np.float16 if kv == F16 else np.float32) for count, dim in heads]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows) + self.states.nbytes

    def most_nbytes(self, rows: int) -> int:
        size = 2 if self.kv == F16 else 4
        return 2 * rows * sum(heads.width for heads in self.heads) * size + self.states.state_nbytes

    def release(self) -> None:
        super().release()
        self.rows = [rows[:0].copy() for rows in self.rows]

    def reserve(self, rows: int) -> None:
        held = len(self.rows[0]) if self.rows else rows
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
        if self.states.shapes:
            self.states.keep(start, rows)
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
    """The layers of a `Stack`. `cached`: of each layer the one of the cache that it reads; of a delta net its state."""

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
        for segment in segments:
            if segment.cache.states.shapes:
                _replay(segment.cache.states)
        for index, layer in enumerate(self.layers):
            if index in state_layers:
                states[index] = x.copy()
            read, owned = self._read(layer, x, embeddings, index), list(zip(segments, starts[:-1], strict=True))
            attended = np.empty((len(x), layer.out.inputs), np.float32)
            if layer.delta_net is not None:
                self._recur(layer, layer.delta_net, self.cached[index], read, owned, attended)
            else:
                queries, gates, keys, values = self._project(layer, read)
                if layer.rotary is not None:
                    cosines, sines = (table[positions][:, None] for table in tables[layer.rotary])
                    queries, keys = rotated(queries, cosines, sines), rotated(keys, cosines, sines)
                queries = queries * np.float32(self.shape.query_scale(layer.heads_in(self.shape).dim))
                if factors is not None:
                    queries = queries * factors[:, None, None]
                if not self.shape.reads_memory and layer.reads_layer is None:
                    for segment, start in owned:
                        own = slice(start, start + segment.rows)
                        _own_cache(segment).put(self.cached[index], segment.first_slot, keys[own], values[own])
                if only_fills and index == len(self.layers) - 1:
                    return x, states
                for segment, start in owned:
                    for row in range(segment.rows):
                        attended[start + row] = self._attend(
                            _own_cache(segment), index, segment, row, queries[start + row]
                        )
                if layer.output_gate:
                    attended *= _sigmoid(gates.reshape(attended.shape))
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

    def _project(self, layer: Layer, read: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """Queries, gates of what they read (none in most layers), keys and values; [rows, heads, head_dim] each."""
        heads = self.shape.heads
        split = layer.qkv(read)
        split = split.reshape(len(read), -1, layer.heads_in(self.shape).dim)
        first = heads * (2 if layer.output_gate else 1)
        kv_heads = split.shape[1] - first
        queries, gates, keys, values = np.split(
            split, [heads, first, first + (kv_heads if layer.keys_are_values else kv_heads // 2)], 1
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
        return queries, gates, keys, values

    def _recur(
        self, layer: Layer, net: DeltaNet, own: int, read: Rows, owned: Sequence[tuple[Segment, int]], out: Rows
    ) -> None:
        """What a gated delta net reads from its states, which advance by the rows that are not drafted."""
        inputs, said = layer.qkv(read), net.decay_beta(read)
        heads = net.shape.heads
        decays = np.exp(-net.decay_rate * np.logaddexp(np.float32(0), said[:, :heads] + net.time_bias))
        betas = np.float32(net.beta_scale) * _sigmoid(said[:, heads:])
        for segment, start in owned:
            states, committed = segment.cache.states, max(segment.rows - segment.drafted, 0)
            state = states.matrices(own), states.inputs(own)
            nodes: list[tuple[Rows, Rows]] = []  # the state after each draft
            known = states.earlier[len(states.earlier) - states.known :]
            for place, parent in zip(known, states.parents, strict=False):
                before = nodes[parent] if parent >= 0 else state
                nodes.append(_replayed(net.shape, before, states.left(own, place)))
            for row, parent in enumerate(states.parents[states.known :]):
                at, node = start + row, parent - committed
                before = nodes[node] if node >= 0 else state
                after = _step(net, before, inputs[at], decays[at], betas[at])
                matrices, kept, keys, deltas, out[at] = after
                if row < committed:
                    state[0][:], state[1][:] = matrices, kept
                    continue
                nodes.append((matrices, kept))
                left = states.left(own, states.places[row - committed])
                for place, numbers in zip(left, (decays[at], keys, deltas, inputs[at]), strict=True):
                    place[:] = numbers
        per_head = norm(out.reshape(len(out), heads, -1), net.norm, net.eps)
        gates = net.gate(read)
        out[:] = per_head.reshape(out.shape) * gates * _sigmoid(gates)

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
        normed = self._normed(x, layer.mlp_norm)
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
        return self._normed(out, layer.mlp_out_norm) * np.float32(self.shape.residual_scale)

    def _mixed(self, experts: Experts, rows: Rows, scores: Rows) -> Rows:
        numbers, weights = experts.choose(scores)
        out = np.zeros_like(rows)
        for number in np.unique(numbers):
            chosen, rank = np.nonzero(numbers == number)
            gate_up, down = experts.pair(int(number))
            out[chosen] += down(self._gated(gate_up(rows[chosen]))) * weights[chosen, rank, None]
        if (shared := experts.shared) is not None:
            out += shared.down(self._gated(shared.gate_up(rows))) * _sigmoid(rows @ shared.gate)[:, None]
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


def _sigmoid(rows: Rows) -> Rows:
    return np.asarray(1 / (1 + np.exp(-np.maximum(rows, np.float32(-88)))), np.float32)


def _step(
    net: DeltaNet, state: tuple[Rows, Rows], inputs: Rows, decays: Rows, betas: Rows
) -> tuple[Rows, Rows, Rows, Rows, Rows]:
    """One row: its state (matrices and last inputs), keys, deltas, and what it reads, [heads * value_dim]."""
    heads, key_heads, key_dim, value_dim = net.shape[:4]
    matrices, window = state[0], np.concatenate((state[1], inputs[None]))
    summed: Rows = (window * net.convolution.T).sum(axis=0)
    mixed = summed * _sigmoid(summed)
    both, values = np.split(mixed, [2 * key_heads * key_dim])
    both = both.reshape(2, key_heads, key_dim)
    unit: Rows = both / np.sqrt((both * both).sum(axis=-1, keepdims=True) + np.float32(1e-6))
    queries, keys = (net.shape.of_value_heads(each) for each in unit)
    decayed = matrices * decays[:, None, None]
    deltas = (values.reshape(heads, value_dim) - np.einsum("hkv,hk->hv", decayed, keys)) * betas[:, None]
    after = advanced(decayed, keys, deltas)
    read = np.einsum("hkv,hk->hv", after, queries * np.float32(key_dim**-0.5))
    return after, window[1:], unit[1], deltas, read.reshape(-1)


def advanced(decayed: Rows, keys: Rows, deltas: Rows) -> Rows:
    """[heads, key_dim, value_dim] states, once decayed, with keys [heads, key_dim] times deltas [heads, value_dim]."""
    return decayed + keys[:, :, None] * deltas[:, None, :]


def _replayed(shape: StateShape, state: tuple[Rows, Rows], left: Drafted) -> tuple[Rows, Rows]:
    """A state after a drafted row, by what that has left."""
    matrices, inputs = state
    keys = shape.of_value_heads(left.keys)
    after = advanced(matrices * left.decays[:, None, None], keys, left.deltas)
    return after, np.concatenate((inputs[1:], left.inputs[None]))


def _replay(states: States) -> None:
    """The drafted rows that were kept; from here on the states are torn until the forward ends."""
    states.begin()
    for place in states.earlier[: len(states.earlier) - states.known]:
        for layer, shape in enumerate(states.shapes):
            matrices, inputs = states.matrices(layer), states.inputs(layer)
            matrices[:], inputs[:] = _replayed(shape, (matrices, inputs), states.left(layer, place))


def _own_cache(segment: Segment) -> ReferenceCache:
    if not isinstance(segment.cache, ReferenceCache):
        raise KernelError("A cache of the kernels was used without kernels.")
    return segment.cache
