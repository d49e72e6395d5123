"""Decoder layers that run one after the other over the rows of several sessions at once.

Matrix products take all rows together, attention is each session's own. State: weights only; keys and values are in the
sessions' caches. Invariant: a row's bits do not depend on what else is in the call.
"""

import ctypes as ct
import itertools
from collections.abc import Sequence

import numpy as np

from moa_kernels.bindings import KV_FORMATS, LANES, CHeads, CLayer, CSegment, CStack, KernelError, address
from moa_kernels.blocks import Rows
from moa_kernels.library import library, threads
from moa_kernels.linear import vector
from moa_kernels.rotary import Rotary
from moa_kernels.transformer.cache import Cache
from moa_kernels.transformer.layer import ACTIVATIONS, Layer, StackShape
from moa_kernels.transformer.reference import ReferenceCache, ReferenceStack
from moa_kernels.transformer.segment import Segment
from moa_kernels.transformer.states import States


class Stack:
    """Layers that share a cache.

    `rotary`: angles of positions, or several that layers choose from. `reference`: compute in numpy, which takes any
    sizes, over layers that do so too.
    """

    def __init__(
        self,
        shape: StackShape,
        layers: Sequence[Layer],
        rotary: Rotary | Sequence[Rotary],
        *,
        reference: bool = False,
    ) -> None:
        self.compiled = not reference and library() is not None
        shape.check(any_width=reference)
        self.shape = shape
        self.rotaries = (rotary,) if isinstance(rotary, Rotary) else tuple(rotary)
        self.rotary = self.rotaries[0]  # the only one, in most families
        self.layers = tuple(layers)
        for each in self.rotaries:
            if self.compiled and each.rotated % (2 * LANES):
                raise KernelError(f"{each.rotated} numbers of a head are rotated, which is no multiple of 32.")
        for layer in self.layers:
            layer.check(shape, self.rotaries, compiled=self.compiled)
        self.cached = tuple(self._cached_layers())
        with_heads = [pair for pair in zip(self.cached, self.layers, strict=True) if pair[1].delta_net is None]
        heads = {place: layer.heads_in(shape) for place, layer in with_heads}
        self.cached_heads = tuple(heads.values())
        self.states = tuple(layer.delta_net.shape for layer in self.layers if layer.delta_net is not None)
        if self.compiled:
            self._vectors: list[Rows] = []  # what the C structures point to
            places, states = zip(self.layers, self.cached, strict=True), States(self.states)
            c_layers = (CLayer * len(self.layers))(
                *(layer.to_c(shape, self.rotaries, place, states, self._vectors) for layer, place in places)
            )
            self._c_heads = (CHeads * len(heads))(*(CHeads(*each) for each in self.cached_heads))
            kinds = [(kv, only_fills) for kv in KV_FORMATS for only_fills in (False, True)]
            self._c_stacks = {kind: self._c_stack(*kind, c_layers) for kind in kinds}

    def new_cache(self, *, kv: str) -> Cache:
        """An empty cache for one session; `kv` as `Cache` takes it."""
        return (Cache if self.compiled else ReferenceCache)(self.cached_heads, kv=kv, states=self.states)

    def run(
        self, rows: Rows, segments: Sequence[Segment], state_layers: Sequence[int] = (), embeddings: Rows | None = None
    ) -> tuple[Rows, dict[int, Rows]]:
        """Runs all layers; the new rows are written behind the caches' `length`, which the caller moves on afterwards.

        Args:
            rows: [rows of all segments, hidden] float32; left as it is.
            state_layers: also give the rows that enter these; as many as there are layers: what leaves the last.
            embeddings: [rows, layers, the stack's `embedding`] float32, what each layer adds, or reads, of its own.

        Returns what leaves the last layer, [rows, hidden] float32, and the states asked for, by layer. A MemoryError
        says that the caches cannot grow, or that there is no memory for the forward.
        """
        self._check_call(rows, segments, state_layers, embeddings)
        found = self._run(rows, embeddings, segments, tuple(state_layers), only_fills=False)
        self._advance(segments)
        return found

    def fill(self, rows: Rows, segments: Sequence[Segment]) -> None:
        """As `run`, for rows of which only keys and values are wanted: the last layer computes no more than these."""
        if self.shape.reads_memory:
            raise KernelError("A stack that reads memory writes no keys and values.")
        self._check_call(rows, segments, (), None)
        self._run(rows, None, segments, (), only_fills=True)
        self._advance(segments)

    def _advance(self, segments: Sequence[Segment]) -> None:
        if self.states:
            for segment in segments:
                segment.cache.states.end(max(segment.rows - segment.drafted, 0))

    def _run(
        self, rows: Rows, embeddings: Rows | None, segments: Sequence[Segment], state_layers: Sequence[int],
        *, only_fills: bool,
    ) -> tuple[Rows, dict[int, Rows]]:  # fmt: skip
        if not self.shape.reads_memory:
            for segment in segments:
                segment.cache.make_writable(segment.first_slot, segment.first_slot + segment.rows)
                if self.states:
                    drafted = segment.drafted - segment.known
                    segment.cache.states.prepare(segment.first_slot, segment.known, drafted, segment.parents)
        positions = np.concatenate([segment.positions for segment in segments])
        tables = [rotary.tables(int(positions.max()) + 1) for rotary in self.rotaries]
        factors = self.rotary.query_factors(positions)
        loaded = library()
        if loaded is None or not self.compiled:
            reference = ReferenceStack(self.shape, self.layers, self.cached)
            return reference.run(rows, embeddings, segments, positions, tables, factors, state_layers, only_fills)
        pointers = ct.c_void_p * len(tables)
        out = np.array(rows, np.float32, order="C", copy=True)
        own = None if embeddings is None else vector(embeddings)
        states = np.empty((len(state_layers), *out.shape), np.float32) if state_layers else None
        wanted = np.array(state_layers, np.int32)
        stack = ct.byref(self._c_stacks[segments[0].cache.kv, only_fills])
        angles = (pointers(*map(address, each)) for each in zip(*tables, strict=True))  # cosines, then sines
        given = (address(out), address(own), address(positions), *angles, address(factors))
        c_segments = (CSegment * len(segments))(*map(_c_segment, segments))
        asked = (len(state_layers), address(wanted), address(states))
        if loaded.moa_run(stack, len(out), *given, len(segments), c_segments, *asked, threads()):
            raise MemoryError("There is no memory for a forward.")
        return out, {} if states is None else dict(zip(state_layers, states, strict=True))

    def _cached_layers(self) -> list[int]:
        """Of each layer the one of the cache that it reads; of a delta net the number of its state."""
        own: list[int] = []
        cached, states = itertools.count(), itertools.count()
        for number, layer in enumerate(self.layers):
            source = layer.reads_layer
            if source is None:
                own.append(next(cached if layer.delta_net is None else states))
                continue
            has_keys = 0 <= source < number and self.layers[source].delta_net is None
            if not has_keys or self.layers[source].reads_layer is not None:
                raise KernelError(f"Layer {number} reads the keys and values of layer {source}, which has none for it.")
            if self.layers[source].heads_in(self.shape) != layer.heads_in(self.shape):
                raise KernelError(f"Layer {number} reads the keys and values of layer {source}, whose heads differ.")
            own.append(own[source])
        return own

    def _check_call(
        self, rows: Rows, segments: Sequence[Segment], state_layers: Sequence[int], embeddings: Rows | None
    ) -> None:
        shape = self.shape
        count = sum(segment.rows for segment in segments)
        if rows.shape != (count, shape.hidden) or not count:
            raise KernelError(f"Rows of the shape {rows.shape} came for segments of {count} rows of {shape.hidden}.")
        expected = (count, len(self.layers), shape.embedding) if shape.embedding else None
        if (None if embeddings is None else embeddings.shape) != expected:
            got = "none" if embeddings is None else embeddings.shape
            raise KernelError(f"The layers' embeddings have the shape {got}, expected {expected or 'none'}.")
        for layer in state_layers:
            if not 0 <= layer <= len(self.layers):
                raise KernelError(
                    f"The state of layer {layer} was requested from a stack of {len(self.layers)} layers."
                )
        if self.states and len({id(segment.cache) for segment in segments}) < len(segments):
            raise KernelError("Two segments of a forward advance the states of one cache.")
        for segment in segments:
            cache = segment.cache
            if cache.heads != self.cached_heads or cache.states.shapes != self.states:
                raise KernelError("A segment's cache belongs to another stack.")
            if isinstance(cache, ReferenceCache) == self.compiled:
                kinds = ("A cache in numpy", "with") if self.compiled else ("A cache of the kernels", "without")
                raise KernelError(f"{kinds[0]} was used {kinds[1]} kernels.")
            if cache.kv != segments[0].cache.kv:
                raise KernelError("The caches of one forward have different precisions.")
            segment.check(writes=not shape.reads_memory)

    def _c_stack(self, kv: str, only_fills: bool, c_layers: ct.Array[CLayer]) -> CStack:
        shape = self.shape
        sizes = (shape.hidden, shape.heads, len(self.layers), KV_FORMATS.index(kv), int(only_fills))
        factors = (shape.eps, shape.residual_scale, shape.score_cap, shape.qkv_clip, shape.gate_slope, shape.gate_limit)
        activation = ACTIVATIONS.index(shape.activation)
        return CStack(*sizes, activation, shape.embedding, *factors, c_layers, self._c_heads)


def _c_segment(segment: Segment) -> CSegment:
    seen = map(address, (segment.seen, segment.tail_start, segment.tail))
    rows = (segment.rows, segment.first_slot, segment.cache.table, *seen)
    states = segment.cache.states
    if not states.shapes:
        return CSegment(*rows)
    left = (address(states.memory), address(states.drafted), states.draft_nbytes // 4)
    counts = (len(states.places), len(states.earlier) - states.known, states.known)
    return CSegment(*rows, *left, *counts, address(states.earlier), address(states.places), address(states.parents))
