"""Decoder layers that run one after the other over the rows of several sessions at once.

Matrix products take all rows together, attention is each session's own. State: weights only; keys and values are in the
sessions' caches. Invariant: a row's bits do not depend on what else is in the call.
"""

from __future__ import annotations

import ctypes as ct
from collections.abc import Sequence

import numpy as np

from moa_kernels.bindings import KV_FORMATS, LANES, CHeads, CLayer, CSegment, CStack, address
from moa_kernels.blocks import Rows
from moa_kernels.errors import KernelError
from moa_kernels.library import library
from moa_kernels.linear import vector
from moa_kernels.rotary import Rotary
from moa_kernels.threads import threads
from moa_kernels.transformer.cache import Cache
from moa_kernels.transformer.layer import ACTIVATIONS, Layer, StackShape
from moa_kernels.transformer.reference import ReferenceStack
from moa_kernels.transformer.reference_cache import ReferenceCache
from moa_kernels.transformer.segment import Segment


class Stack:
    """Layers that share a cache.

    Args:
        rotary: angles of positions, or several that layers choose from.
        reference: compute in numpy, which takes any sizes, over layers that do so too.

    Raises KernelError: sizes that the kernels do not take, or layers that do not have them.
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
        self.layers = tuple(layers)
        self._check_rotated()
        for layer in self.layers:
            layer.check(shape, self.rotaries, compiled=self.compiled)
        self.cached = tuple(self._cached_layers())
        heads = {place: layer.heads_in(shape) for place, layer in zip(self.cached, self.layers, strict=True)}
        self.cached_heads = tuple(heads.values())
        if self.compiled:
            self._vectors: list[Rows] = []  # what the C structures point to
            places = zip(self.layers, self.cached, strict=True)
            c_layers = (CLayer * len(self.layers))(
                *(layer.to_c(shape, self.rotaries, place, self._vectors) for layer, place in places)
            )
            self._c_heads = (CHeads * len(heads))(*(CHeads(*each) for each in self.cached_heads))
            self._c_stacks = {
                (kv, only_fills): self._c_stack(kv, only_fills, c_layers)
                for kv in KV_FORMATS
                for only_fills in (False, True)
            }

    @property
    def rotary(self) -> Rotary:
        """The first of its rotary angles: the only one, in most families."""
        return self.rotaries[0]

    def new_cache(self, *, kv: str) -> Cache:
        """An empty cache for one session; `kv` as `Cache` takes it."""
        kind = Cache if self.compiled else ReferenceCache
        return kind(self.cached_heads, kv=kv)

    def run(
        self,
        rows: Rows,
        segments: Sequence[Segment],
        state_layers: Sequence[int] = (),
        embeddings: Rows | None = None,
    ) -> tuple[Rows, dict[int, Rows]]:
        """Runs all layers; the new rows are written behind the caches' `length`, which the caller moves on afterwards.

        Args:
            rows: [rows of all segments, hidden] float32; left as it is.
            state_layers: also give the rows that enter these; as many as there are layers: what leaves the last.
            embeddings: [rows, layers, the stack's `embedding`] float32, what each layer adds, or reads, of its own.

        Returns:
            what leaves the last layer, [rows, hidden] float32, and the states asked for, by layer.

        Raises:
            KernelError: rows or segments that do not fit this stack.
            MemoryError: the caches cannot grow, or there is no memory for the forward.
        """
        self._check_call(rows, segments, state_layers, embeddings)
        return self._run(rows, embeddings, segments, tuple(state_layers), only_fills=False)

    def fill(self, rows: Rows, segments: Sequence[Segment]) -> None:
        """As `run`, for rows of which only keys and values are wanted: the last layer computes no more than these.

        Raises KernelError, MemoryError: as `run`; or the stack reads memory, and so has nothing to write.
        """
        if self.shape.reads_memory:
            raise KernelError("A stack that reads memory writes no keys and values.")
        self._check_call(rows, segments, (), None)
        self._run(rows, None, segments, (), only_fills=True)

    def _run(
        self,
        rows: Rows,
        embeddings: Rows | None,
        segments: Sequence[Segment],
        state_layers: tuple[int, ...],
        *,
        only_fills: bool,
    ) -> tuple[Rows, dict[int, Rows]]:
        if not self.shape.reads_memory:
            for segment in segments:
                segment.cache.make_writable(segment.first_slot, segment.first_slot + segment.rows)
        if len(segments) == 1:
            positions = segments[0].positions
        else:
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
        failed = loaded.moa_run(
            ct.byref(self._c_stacks[segments[0].cache.kv, only_fills]),
            len(out),
            address(out),
            address(own),
            address(positions),
            pointers(*(address(cosines) for cosines, _ in tables)),
            pointers(*(address(sines) for _, sines in tables)),
            address(factors),
            len(segments),
            (CSegment * len(segments))(*map(_c_segment, segments)),
            len(state_layers),
            address(wanted),
            address(states),
            threads(),
        )
        if failed:
            raise MemoryError("There is no memory for a forward.")
        return out, {} if states is None else dict(zip(state_layers, states, strict=True))

    def _cached_layers(self) -> list[int]:
        """Of each layer the one of the cache that it reads."""
        own: list[int] = []
        for number, layer in enumerate(self.layers):
            source = layer.reads_layer
            if source is None:
                own.append(max(own, default=-1) + 1)
                continue
            if not 0 <= source < number or self.layers[source].reads_layer is not None:
                raise KernelError(f"Layer {number} reads the keys and values of layer {source}, which has none for it.")
            if self.layers[source].heads_in(self.shape) != layer.heads_in(self.shape):
                raise KernelError(f"Layer {number} reads the keys and values of layer {source}, whose heads differ.")
            own.append(own[source])
        return own

    def _check_rotated(self) -> None:
        for rotary in self.rotaries:
            if self.compiled and rotary.rotated % (2 * LANES):
                raise KernelError(f"{rotary.rotated} numbers of a head are rotated, which is no multiple of 32.")

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
        for segment in segments:
            cache = segment.cache
            if cache.heads != self.cached_heads:
                raise KernelError("A segment's cache belongs to another stack.")
            if isinstance(cache, ReferenceCache) == self.compiled:
                kinds = ("A cache in numpy", "with") if self.compiled else ("A cache of the kernels", "without")
                raise KernelError(f"{kinds[0]} was used {kinds[1]} kernels.")
            if cache.kv != segments[0].cache.kv:
                raise KernelError("The caches of one forward have different precisions.")
            segment.check(writes=not shape.reads_memory)

    def _c_stack(self, kv: str, only_fills: bool, c_layers: ct.Array[CLayer]) -> CStack:
        shape = self.shape
        return CStack(
            shape.hidden,
            shape.heads,
            len(self.layers),
            KV_FORMATS.index(kv),
            int(only_fills),
            ACTIVATIONS.index(shape.activation),
            shape.embedding,
            shape.eps,
            shape.residual_scale,
            shape.score_cap,
            shape.qkv_clip,
            shape.gate_slope,
            shape.gate_limit,
            c_layers,
            self._c_heads,
        )


def _c_segment(segment: Segment) -> CSegment:
    return CSegment(
        segment.rows,
        segment.first_slot,
        segment.cache.table,
        address(segment.seen),
        address(segment.tail_start),
        address(segment.tail),
    )
