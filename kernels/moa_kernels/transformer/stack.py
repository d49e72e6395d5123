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
from moa_kernels.bindings import KV_FORMATS, LANES, CLayer, CLinear, CSegment, CStack, address
from moa_kernels.blocks import Rows
from moa_kernels.errors import KernelError
from moa_kernels.library import library
from moa_kernels.linear import Linear, vector
from moa_kernels.rotary import Rotary
from moa_kernels.threads import threads
from moa_kernels.transformer.cache import Cache
from moa_kernels.transformer.experts import Experts
from moa_kernels.transformer.segment import Segment

SILU, GELU_TANH, CLAMPED_SWIGLU = "silu", "gelu_tanh", "clamped_swiglu"
ACTIVATIONS = (SILU, GELU_TANH, CLAMPED_SWIGLU)  # in the order of their numbers in kernels.h


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers of a stack have.

    Args:
        inner: width of the MLP.
        eps: of the norms.
        reads_memory: keys and values come from elsewhere; `qkv` of the layers holds queries alone.
        activation: of the MLP's gate: "silu", "gelu_tanh", or "clamped_swiglu", which is
            gate sigmoid(gate_slope gate) (up + 1), with both cut off at gate_limit.
        score_scale: of attention's scores; 0: one over the root of the head dimension.
        score_cap: scores become cap tanh(score / cap); 0: they stay.
        qkv_clip: queries, keys and values, once normed, are cut off at this and at minus this; 0: they are not.
        residual_scale: of what attention and MLP add to the rows.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    reads_memory: bool = False
    activation: str = SILU
    score_scale: float = 0.0
    score_cap: float = 0.0
    qkv_clip: float = 0.0
    residual_scale: float = 1.0
    gate_slope: float = 1.702
    gate_limit: float = 7.0

    @property
    def query_scale(self) -> float:
        """What queries are multiplied by, in float32."""
        return float(np.float32(self.score_scale or np.float32(1) / np.sqrt(np.float32(self.head_dim))))

    def check(self, *, any_width: bool = False) -> None:
        """Raises KernelError for sizes that the kernels do not take; `any_width`: that nothing takes."""
        if min(self.hidden, self.inner, self.heads, self.kv_heads, self.head_dim) < 1:
            raise KernelError(f"{self} is no stack: it has a size below 1.")
        if self.heads % self.kv_heads:
            raise KernelError(f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly.")
        if self.activation not in ACTIVATIONS:
            raise KernelError(f"The activation {self.activation!r} is not computed by the kernels.")
        factors = (
            *(self.score_scale, self.score_cap, self.qkv_clip),
            *(self.residual_scale, self.gate_slope, self.gate_limit),
        )
        if not all(np.isfinite(np.float32(factor)) and factor >= 0 for factor in factors):
            raise KernelError(f"The scalings {factors} of scores, caps, clips, residuals and gates cannot be used.")
        if any_width:
            return
        for name, size, divisor in (
            ("hidden size", self.hidden, 32),
            ("MLP width", self.inner, 32),
            ("head dimension", self.head_dim, 2 * LANES),
        ):
            if size % divisor:
                raise KernelError(f"The {name} is {size}, which is no multiple of {divisor}.")


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer, and what it does differently from others of its stack.

    Args:
        attention_norm, mlp_norm: [hidden], of what they read; None: they read the rows as they are.
        qkv: queries, keys and values of all heads side by side; `gate_up` alike.
        query_norm, key_norm: [head_dim], or over all heads side by side.
        attention_out_norm, mlp_out_norm: [hidden], of what they add to the rows; None: it is added as it is.
        window: how many of the newest positions a row sees; 0: all.
        rotary: which of the stack's rotary angles turn queries and keys; None: they are not turned.
        sinks: [heads], scores that are counted as if something had them, and weigh nothing; None: there are none.
        experts: in place of `gate_up` and `down`, which are None then.
    """

    attention_norm: Rows | None
    qkv: Linear
    out: Linear
    mlp_norm: Rows | None
    gate_up: Linear | None
    down: Linear | None
    query_norm: Rows | None = None
    key_norm: Rows | None = None
    attention_out_norm: Rows | None = None
    mlp_out_norm: Rows | None = None
    window: int = 0
    rotary: int | None = 0
    sinks: Rows | None = None
    experts: Experts | None = None

    @property
    def mlp(self) -> tuple[Linear, Linear]:
        """`gate_up` and `down` of a layer without experts.

        Raises:
            KernelError: it has none of its own.
        """
        if self.gate_up is None or self.down is None:
            raise KernelError("A layer has neither an MLP nor experts.")
        return self.gate_up, self.down


class Stack:
    """Layers that share a cache.

    Args:
        rotary: angles of positions, or several that layers choose from.
        reference: compute in numpy, which takes any sizes, over layers that do so too.

    Raises:
        KernelError: sizes that the kernels do not take, or layers that do not have them.
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
        self._check_rotaries()
        self._vectors: list[Rows] = []  # what the C structures point to
        for layer in self.layers:
            self._check(layer)
        if self.compiled:
            c_layers = (CLayer * len(self.layers))(*(self._c_layer(layer) for layer in self.layers))
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
        kind = Cache if self.compiled else reference.ReferenceCache
        return kind(len(self.layers), self.shape.kv_heads, self.shape.head_dim, kv=kv)

    def run(
        self, rows: Rows, segments: Sequence[Segment], state_layers: Sequence[int] = ()
    ) -> tuple[Rows, dict[int, Rows]]:
        """Runs all layers; the new rows are written behind the caches' `length`, which the caller moves on afterwards.

        Args:
            rows: [rows of all segments, hidden] float32; left as it is.
            state_layers: also give the rows that enter these; as many as there are layers: what leaves the last.

        Returns:
            what leaves the last layer, [rows, hidden] float32, and the states asked for, by layer.

        Raises:
            KernelError: rows or segments that do not fit this stack.
            MemoryError: the caches cannot grow, or there is no memory for the forward.
        """
        self._check_call(rows, segments, state_layers)
        return self._run(rows, segments, tuple(state_layers), only_fills=False)

    def fill(self, rows: Rows, segments: Sequence[Segment]) -> None:
        """As `run`, for rows of which only keys and values are wanted: the last layer computes no more than these.

        Raises:
            KernelError, MemoryError: as `run`; or the stack reads memory, and so has nothing to write.
        """
        if self.shape.reads_memory:
            raise KernelError("A stack that reads memory writes no keys and values.")
        self._check_call(rows, segments, ())
        self._run(rows, segments, (), only_fills=True)

    def _run(
        self, rows: Rows, segments: Sequence[Segment], state_layers: tuple[int, ...], *, only_fills: bool
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
            return reference.run(self, rows, segments, positions, tables, factors, state_layers, only_fills)
        pointers = ct.c_void_p * len(tables)
        out = np.array(rows, np.float32, order="C", copy=True)
        states = np.empty((len(state_layers), *out.shape), np.float32) if state_layers else None
        wanted = np.array(state_layers, np.int32)
        failed = loaded.moa_run(
            ct.byref(self._c_stacks[segments[0].cache.kv, only_fills]),
            len(out),
            address(out),
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

    def _check(self, layer: Layer) -> None:
        shape = self.shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        wide = queries if shape.reads_memory else queries + 2 * keys
        expected = {
            "qkv": (layer.qkv, wide, shape.hidden),
            "out": (layer.out, shape.hidden, queries),
        }
        if layer.experts is None:
            gate_up, down = layer.mlp
            expected |= {
                "gate_up": (gate_up, 2 * shape.inner, shape.hidden),
                "down": (down, shape.hidden, shape.inner),
            }
        else:
            expected["router"] = (layer.experts.router, layer.experts.count, shape.hidden)
        for name, (linear, outputs, inputs) in expected.items():
            if linear.compiled != self.compiled:
                raise KernelError(f"{name} and its stack are not both compiled, or both computed in numpy.")
            if (linear.outputs, linear.inputs) != (outputs, inputs):
                raise KernelError(
                    f"{name} has the shape [{linear.outputs}, {linear.inputs}], expected [{outputs}, {inputs}]."
                )
        for name, norm, width in (
            ("attention_norm", layer.attention_norm, shape.hidden),
            ("mlp_norm", layer.mlp_norm, shape.hidden),
            ("attention_out_norm", layer.attention_out_norm, shape.hidden),
            ("mlp_out_norm", layer.mlp_out_norm, shape.hidden),
            ("sinks", layer.sinks, shape.heads),
            ("query_norm", layer.query_norm, queries if _norms_all_heads(layer, shape) else shape.head_dim),
            ("key_norm", layer.key_norm, keys if _norms_all_heads(layer, shape) else shape.head_dim),
        ):
            if norm is not None and norm.shape != (width,):
                raise KernelError(f"{name} has the shape {norm.shape}, expected ({width},).")
        if layer.window < 0 or (layer.rotary is not None and not 0 <= layer.rotary < len(self.rotaries)):
            raise KernelError(f"A layer has the window {layer.window} and the rotary angles {layer.rotary}.")

    def _check_rotaries(self) -> None:
        head_dim, rotated = self.shape.head_dim, {rotary.rotated for rotary in self.rotaries}
        for rotary in self.rotaries:
            if rotary.head_dim != head_dim:
                raise KernelError(f"The rotary angles are for heads of {rotary.head_dim} numbers, not {head_dim}.")
        if len(rotated) != 1:
            raise KernelError(f"Layers rotate {sorted(rotated)} numbers of a head: the kernels rotate as many in all.")
        if self.compiled and self.rotary.rotated % (2 * LANES):
            raise KernelError(f"{self.rotary.rotated} numbers of a head are rotated, which is no multiple of 32.")

    def _check_call(self, rows: Rows, segments: Sequence[Segment], state_layers: Sequence[int]) -> None:
        shape = self.shape
        count = sum(segment.rows for segment in segments)
        if rows.shape != (count, shape.hidden) or not count:
            raise KernelError(f"Rows of the shape {rows.shape} came for segments of {count} rows of {shape.hidden}.")
        for layer in state_layers:
            if not 0 <= layer <= len(self.layers):
                raise KernelError(
                    f"The state of layer {layer} was requested from a stack of {len(self.layers)} layers."
                )
        for segment in segments:
            cache = segment.cache
            if (cache.layers, cache.kv_heads, cache.head_dim) != (len(self.layers), shape.kv_heads, shape.head_dim):
                raise KernelError("A segment's cache belongs to another stack.")
            if isinstance(cache, reference.ReferenceCache) == self.compiled:
                kinds = ("A cache in numpy", "with") if self.compiled else ("A cache of the kernels", "without")
                raise KernelError(f"{kinds[0]} was used {kinds[1]} kernels.")
            if cache.kv != segments[0].cache.kv:
                raise KernelError("The caches of one forward have different precisions.")
            segment.check(writes=not shape.reads_memory)

    def _c_stack(self, kv: str, only_fills: bool, c_layers: ct.Array[CLayer]) -> CStack:
        shape = self.shape
        return CStack(
            shape.hidden,
            shape.inner,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            len(self.layers),
            KV_FORMATS.index(kv),
            int(shape.reads_memory),
            int(only_fills),
            ACTIVATIONS.index(shape.activation),
            self.rotary.rotated,
            shape.eps,
            shape.query_scale,
            shape.residual_scale,
            shape.score_cap,
            shape.qkv_clip,
            shape.gate_slope,
            shape.gate_limit,
            c_layers,
        )

    def _c_layer(self, layer: Layer) -> CLayer:
        norms = [
            None if norm is None else vector(norm)
            for norm in (
                layer.attention_norm,
                layer.mlp_norm,
                layer.attention_out_norm,
                layer.mlp_out_norm,
                layer.query_norm,
                layer.key_norm,
            )
        ]
        sinks = None if layer.sinks is None else vector(layer.sinks)
        self._vectors += [each for each in (*norms, sinks) if each is not None]
        gate_up, down = (CLinear(), CLinear()) if layer.experts is not None else (each.c for each in layer.mlp)
        return CLayer(
            *map(address, norms),
            int(_norms_all_heads(layer, self.shape)),
            layer.window,
            -1 if layer.rotary is None else layer.rotary,
            address(sinks),
            layer.qkv.c,
            layer.out.c,
            gate_up,
            down,
            None if layer.experts is None else ct.pointer(layer.experts.c),
        )


def _norms_all_heads(layer: Layer, shape: StackShape) -> bool:
    """Whether the norm of queries, and that of keys, is over all heads side by side (OLMo 2)."""
    return layer.query_norm is not None and layer.query_norm.shape == (shape.heads * shape.head_dim,)


def _c_segment(segment: Segment) -> CSegment:
    return CSegment(
        segment.rows,
        segment.first_slot,
        segment.cache.table,
        address(segment.seen),
        address(segment.tail_start),
        address(segment.tail),
    )
