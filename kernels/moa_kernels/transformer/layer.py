"""A decoder layer's weights and experts, the sizes that a stack's layers share, and what these are to the kernels in C.

Pure data over arrays. Invariants: a layer that passes `check` has the shapes that the kernels read; a row's experts,
their weights and the order in which they are added depend on the row alone, and equal scores go by experts' numbers.
"""

import ctypes as ct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import LANES, CDeltaNet, CExperts, CHeads, CLayer, CLinear, KernelError, address
from moa_kernels.blocks import Rows
from moa_kernels.linear import Linear, vector
from moa_kernels.rotary import Rotary
from moa_kernels.transformer.cache import Heads
from moa_kernels.transformer.states import States, StateShape

MOST_EXPERTS = 1024  # of a layer, as in kernels.h; the models of 2026 have up to 512
MOST_TAPS = 8  # rows of a delta net's convolution; the models of 2026 have 4
ReadExpert = Callable[[int], tuple[Linear, Linear]]


class SharedExpert(NamedTuple):
    """An MLP that all rows have besides the experts they choose, times the sigmoid of what `gate` says of a row."""

    gate_up: Linear
    down: Linear
    gate: Rows  # [hidden]


class Experts:
    """The experts of one layer, of which a row has `chosen`, by the scores of `router`, which is in float32.

    `read` gives the products of an expert by its number: gate and up, and down; in numpy each is read when a row has
    chosen it, and not kept. `weighs_all`: weights are parts of a softmax over all scores, whose sum is below 1; else
    over those of the chosen. `scales`: [experts], what the experts' weights are multiplied by.
    """

    def __init__(
        self,
        router: Linear,
        chosen: int,
        read: ReadExpert,
        *,
        weighs_all: bool = False,
        scales: Rows | None = None,
        shared: SharedExpert | None = None,
    ) -> None:
        self.count, self.chosen, self.weighs_all = router.outputs, chosen, weighs_all
        if self.count > MOST_EXPERTS or not 0 < chosen <= self.count:
            raise KernelError(
                f"A row cannot have {chosen} of {self.count} experts, of which the kernels take at most {MOST_EXPERTS}."
            )
        if router.compiled and not router.plain:
            raise KernelError("The router of experts is not in float32.")
        if scales is not None and scales.shape != (self.count,):
            raise KernelError(f"The scales of {self.count} experts have the shape {scales.shape}.")
        self.router, self.compiled = router, router.compiled
        self.scales = None if scales is None else vector(scales)
        self._read, self.shared = read, shared
        gate_up, down = self._read(0)
        self.hidden, self.inner = router.inputs, down.inputs
        self._check("Expert 0", gate_up, down, self.inner)
        if shared is not None:
            self._check("The shared expert", shared.gate_up, shared.down, shared.down.inputs)
            if shared.gate.shape != (self.hidden,):
                raise KernelError(f"The gate of the shared expert has the shape {shared.gate.shape}.")
        if not self.compiled:
            return
        self._pairs = [(gate_up, down), *(read(number) for number in range(1, self.count))]
        for number, pair in enumerate(self._pairs):
            self._check(f"Expert {number}", *pair, self.inner)
            if list(map(_form, pair)) != [_form(gate_up), _form(down)]:
                raise KernelError(f"Expert {number} is not of the form of expert 0: one has a bias or is in float32.")
        self._c_gate_up = (CLinear * self.count)(*(gate_up.c for gate_up, _ in self._pairs))
        self._c_down = (CLinear * self.count)(*(down.c for _, down in self._pairs))
        self.c = CExperts(
            self.count, chosen, self.inner, int(weighs_all), address(self.scales), router.c,
            ct.cast(self._c_gate_up, ct.POINTER(CLinear)), ct.cast(self._c_down, ct.POINTER(CLinear)),
        )  # fmt: skip

    def pair(self, number: int) -> tuple[Linear, Linear]:
        return self._pairs[number] if self.compiled else self._read(number)

    def choose(self, scores: Rows) -> tuple[npt.NDArray[np.int64], Rows]:
        """Each row's experts, best first, and their weights: [rows, chosen] each; in numpy.

        `scores`: by the router, [rows, experts].
        """
        numbers = np.argsort(-scores, axis=-1, kind="stable")[:, : self.chosen]
        best = np.take_along_axis(scores, numbers, axis=-1)
        powers = np.exp((scores if self.weighs_all else best) - best[:, :1])
        weights = np.exp(best - best[:, :1]) / powers.sum(axis=-1, keepdims=True)
        return numbers, weights if self.scales is None else weights * self.scales[numbers]

    def _check(self, what: str, gate_up: Linear, down: Linear, inner: int) -> None:
        if any(linear.compiled != self.compiled for linear in (gate_up, down)):
            raise KernelError(f"{what} and its router are not both compiled, or both computed in numpy.")
        got = (gate_up.outputs, gate_up.inputs, down.outputs, down.inputs)
        if got != (2 * inner, self.hidden, self.hidden, inner):
            raise KernelError(
                f"{what} has the shapes [{got[0]}, {got[1]}] and [{got[2]}, {got[3]}],"
                f" expected [{2 * inner}, {self.hidden}] and [{self.hidden}, {inner}]."
            )


def _form(linear: Linear) -> tuple[bool, bool]:
    return linear.plain, linear.has_bias


SILU, GELU_TANH, CLAMPED_SWIGLU = "silu", "gelu_tanh", "clamped_swiglu"
ACTIVATIONS = (SILU, GELU_TANH, CLAMPED_SWIGLU)  # in the order of their numbers in kernels.h
_NORMS = ("attention_norm", "mlp_norm", "attention_out_norm", "mlp_out_norm")
_HEAD_NORMS = ("query_norm", "key_norm", "value_norm")
BESIDE_NORMS = ("router", "experts", "experts_out", "mlp_out")


@dataclass(frozen=True, slots=True)
class StackShape:
    """Sizes that all layers of a stack have, unless a layer says otherwise."""

    hidden: int
    inner: int  # width of the MLP
    heads: int
    kv_heads: int
    head_dim: int  # of keys and values
    eps: float  # of the norms
    reads_memory: bool = False  # keys and values come from elsewhere; `qkv` of the layers holds queries alone
    # Of the MLP's gate; "clamped_swiglu" is gate sigmoid(gate_slope gate) (up + 1), both cut off at gate_limit.
    activation: str = SILU
    score_scale: float = 0.0  # of attention's scores; 0: one over the root of the head dimension
    score_cap: float = 0.0  # scores become cap tanh(score / cap); 0: they stay
    qkv_clip: float = (
        0.0  # queries, keys and values, once normed, are cut off at this and at minus this; 0: they are not
    )
    residual_scale: float = 1.0  # of what attention and MLP add to the rows
    gate_slope: float = 1.702
    gate_limit: float = 7.0
    embedding: int = 0  # width of the layers' own embeddings; 0: they have none

    def query_scale(self, head_dim: int) -> float:
        return float(np.float32(self.score_scale or np.float32(1) / np.sqrt(np.float32(head_dim))))

    def check(self, *, any_width: bool = False) -> None:
        """Raises KernelError for sizes that the kernels do not take; `any_width`: that nothing takes."""
        if min(self.hidden, self.inner, self.heads, self.kv_heads, self.head_dim) < 1:
            raise KernelError(f"{self} is no stack: it has a size below 1.")
        if self.activation not in ACTIVATIONS:
            raise KernelError(f"The activation {self.activation!r} is not computed by the kernels.")
        scales = ("score_scale", "score_cap", "qkv_clip", "residual_scale", "gate_slope", "gate_limit", "eps")
        factors = tuple(getattr(self, name) for name in scales)
        if not all(np.isfinite(np.float32(factor)) and factor >= 0 for factor in factors):
            raise KernelError(f"The scalings {factors} of scores, caps, clips, residuals, gates, norms cannot be used.")
        self.check_sizes(Heads(self.kv_heads, self.head_dim), self.inner, any_width=any_width)

    def check_sizes(self, heads: Heads, inner: int, *, any_width: bool) -> None:
        if self.heads % heads.number:
            raise KernelError(f"{self.heads} query heads cannot share {heads.number} key/value heads evenly.")
        if any_width:
            return
        for name, size, divisor in (
            ("hidden size", self.hidden, 32),
            ("MLP width", inner, 32),
            ("head dimension", heads.dim, 2 * LANES),
            ("width of the layers' embeddings", self.embedding, 32),
        ):
            if size % divisor:
                raise KernelError(f"The {name} is {size}, which is no multiple of {divisor}.")


@dataclass(frozen=True, slots=True)
class BesideNorms:
    """The norms of a layer whose experts stand beside its MLP, [hidden] each."""

    router: Rows  # of what it reads: the rows that the MLP's norm reads
    experts: Rows  # likewise
    experts_out: Rows  # of what experts give, before both are added
    mlp_out: Rows  # likewise


@dataclass(frozen=True, slots=True)
class LayerEmbedding:
    """How a layer adds its own embedding of each token to the rows that leave its MLP."""

    gate: Linear  # [embedding, hidden], what the embedding is multiplied by, after the activation
    out: Linear  # [hidden, embedding]
    norm: Rows  # [hidden], of what is added


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """What a layer has in place of attention: a gated delta net (arXiv 2412.06464), whose arithmetic is float32.

    The layer's `qkv` gives the channels of its convolution, and `out` reads [heads * value_dim].
    """

    shape: StateShape
    gate: Linear  # [heads * value_dim, hidden], whose SiLU multiplies what is read, once normed
    decay_beta: Linear  # in float32, [2 * heads, hidden]: what decays follow, and then betas
    convolution: Rows  # [channels, taps], the oldest input first
    decay_rate: Rows  # [heads]; a decay is exp(-decay_rate * softplus(said + time_bias))
    time_bias: Rows  # [heads]
    norm: Rows  # [value_dim], of what each head reads
    eps: float  # of this norm
    beta_scale: float = 1.0  # 2: a state may be turned round (OLMo Hybrid)

    def to_c(self, state: int, left: int, place: Callable[[Rows], int | None]) -> CDeltaNet:
        """For C; `state` and `left`: where its numbers begin in states, and in what a drafted row leaves."""
        vectors = (self.convolution.T, self.decay_rate, self.time_bias, self.norm)
        sizes = (*map(int, self.shape), self.eps, self.beta_scale, state, left)
        return CDeltaNet(*sizes, *map(place, vectors), self.gate.c, self.decay_beta.c)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer, and what it does differently from others of its stack."""

    attention_norm: Rows | None  # [hidden], of what it reads; None: it reads the rows as they are
    qkv: Linear  # queries, keys and values of all heads side by side; `gate_up` alike
    out: Linear
    mlp_norm: Rows | None  # as `attention_norm`
    gate_up: Linear | None
    down: Linear | None
    query_norm: Rows | None = None  # [head_dim], or over all heads side by side
    key_norm: Rows | None = None
    attention_out_norm: Rows | None = None  # [hidden], of what attention adds to the rows; None: it is added as it is
    mlp_out_norm: Rows | None = None
    window: int = 0  # how many of the newest positions a row sees; 0: all
    rotary: int | None = 0  # which of the stack's rotary angles turn queries and keys; None: they are not turned
    sinks: Rows | None = None  # [heads], scores that are counted as if something had them, and weigh nothing
    experts: Experts | None = None  # in place of `gate_up` and `down`, which are None then, or beside them
    beside: BesideNorms | None = None  # of experts beside an MLP
    heads: Heads | None = None  # of its keys and values; None: the stack's
    inner: int | None = None  # width of its MLP; None: the stack's
    value_norm: Rows | None = None  # [head_dim], of each head's values
    keys_are_values: bool = False  # values are the keys, before their norm and turn; `qkv` has none
    reads_layer: int | None = None  # the earlier layer whose keys and values it reads; `qkv` has queries alone
    embedding: LayerEmbedding | None = None
    # [embedding], of its own embedding, which attention reads before the normed row (EAGLE-3); None: the row alone.
    attention_embedding_norm: Rows | None = None
    out_scale: float = 1.0  # of the rows that leave it
    output_gate: bool = False  # `qkv` has gates behind the queries; what is read is multiplied by their sigmoid
    delta_net: DeltaNet | None = None  # in place of attention

    @property
    def mlp(self) -> tuple[Linear, Linear]:
        """`gate_up` and `down` of a layer that has an MLP; raises KernelError: it has none of its own."""
        if self.gate_up is None or self.down is None:
            raise KernelError("A layer has neither an MLP nor experts.")
        return self.gate_up, self.down

    def heads_in(self, shape: StackShape) -> Heads:
        return self.heads or Heads(shape.kv_heads, shape.head_dim)

    def inner_in(self, shape: StackShape) -> int:
        return self.inner or shape.inner

    def norms_all_heads(self, shape: StackShape) -> bool:
        """Whether the norm of queries, and that of keys, is over all heads side by side (OLMo 2)."""
        queries = shape.heads * self.heads_in(shape).dim
        return self.query_norm is not None and self.query_norm.shape == (queries,)

    def check(self, shape: StackShape, rotaries: tuple[Rotary, ...], *, compiled: bool) -> None:
        """Raises KernelError for weights that do not have the sizes of a stack."""
        shape.check_sizes(self.heads_in(shape), self.inner_in(shape), any_width=not compiled)
        if self.delta_net is not None:
            self._check_delta_net(self.delta_net, compiled=compiled)
        for name, (linear, outputs, inputs) in self.matrices(shape).items():
            if linear.compiled != compiled:
                raise KernelError(f"{name} and its stack are not both compiled, or both computed in numpy.")
            if (linear.outputs, linear.inputs) != (outputs, inputs):
                raise KernelError(
                    f"{name} has the shape [{linear.outputs}, {linear.inputs}], expected [{outputs}, {inputs}]."
                )
        for name, norm, width in self.vectors(shape, all_heads=self.norms_all_heads(shape)):
            if norm is not None and norm.shape != (width,):
                raise KernelError(f"{name} has the shape {norm.shape}, expected ({width},).")
        if (self.beside is not None) != (self.experts is not None and self.gate_up is not None):
            raise KernelError("A layer with experts beside an MLP needs the norms of both, and others have none.")
        if not np.isfinite(np.float32(self.out_scale)):
            raise KernelError(f"The rows that leave a layer are scaled by {self.out_scale}.")
        if self.window < 0 or (self.rotary is not None and not 0 <= self.rotary < len(rotaries)):
            raise KernelError(f"A layer has the window {self.window} and the rotary angles {self.rotary}.")
        if self.rotary is not None and rotaries[self.rotary].head_dim != self.heads_in(shape).dim:
            raise KernelError(
                f"The rotary angles are for heads of {rotaries[self.rotary].head_dim} numbers,"
                f" not {self.heads_in(shape).dim}."
            )

    def _check_delta_net(self, net: DeltaNet, *, compiled: bool) -> None:
        heads, key_heads, key_dim, value_dim, taps = sizes = net.shape[:5]
        if not 2 <= taps <= MOST_TAPS:
            raise KernelError(f"A convolution over {taps} rows is not computed: 2 to {MOST_TAPS} are.")
        if min(sizes) < 1 or heads % key_heads:
            raise KernelError(f"{heads} value heads of {value_dim} numbers cannot share {key_heads} keys of {key_dim}.")
        if compiled and (key_dim % (2 * LANES) or value_dim % (2 * LANES)):
            raise KernelError(f"Heads of {key_dim} and {value_dim} numbers are no multiples of {2 * LANES}.")
        if compiled and not net.decay_beta.plain:
            raise KernelError("What decays follow is not in float32.")
        vectors = ((net.convolution, (net.shape.channels, taps)), (net.norm, (value_dim,)))
        for array, expected in (*vectors, (net.decay_rate, (heads,)), (net.time_bias, (heads,))):
            if array.shape != expected:
                raise KernelError(f"A gated delta net has numbers of the shape {array.shape}, expected {expected}.")
        if self.output_gate or self.reads_layer is not None or self.attention_embedding_norm is not None:
            raise KernelError("A gated delta net has neither an output gate nor another layer's keys, nor embeddings.")

    def matrices(self, shape: StackShape) -> dict[str, tuple[Linear, int, int]]:
        """Its matrices by name, and how many outputs and inputs each should have."""
        heads, inner = self.heads_in(shape), self.inner_in(shape)
        queries, keys = shape.heads * heads.dim, heads.number * heads.dim
        own = 0 if shape.reads_memory or self.reads_layer is not None else keys if self.keys_are_values else 2 * keys
        read = shape.hidden + (0 if self.attention_embedding_norm is None else shape.embedding)
        gated = queries if self.output_gate else 0
        expected = {"qkv": (self.qkv, queries + gated + own, read), "out": (self.out, shape.hidden, queries)}
        if (net := self.delta_net) is not None:
            width = net.shape.heads * net.shape.value_dim
            expected = {"qkv": (self.qkv, net.shape.channels, read), "out": (self.out, shape.hidden, width)}
            expected["gate"] = (net.gate, width, shape.hidden)
            expected["decay_beta"] = (net.decay_beta, 2 * net.shape.heads, shape.hidden)
        if self.experts is None or self.gate_up is not None:
            gate_up, down = self.mlp
            expected |= {"gate_up": (gate_up, 2 * inner, shape.hidden), "down": (down, shape.hidden, inner)}
        if self.experts is not None:
            expected["router"] = (self.experts.router, self.experts.count, shape.hidden)
        if self.embedding is not None:
            gate, out = self.embedding.gate, self.embedding.out
            expected["embedding_gate"] = (gate, shape.embedding, shape.hidden)
            expected["embedding_out"] = (out, shape.hidden, shape.embedding)
        return expected

    def vectors(self, shape: StackShape, *, all_heads: bool) -> list[tuple[str, Rows | None, int]]:
        """Its vectors by name, and how wide each should be; `all_heads`: as `norms_all_heads`."""
        heads = self.heads_in(shape)
        found: list[tuple[str, Rows | None, int]] = [(name, getattr(self, name), shape.hidden) for name in _NORMS]
        found += [("sinks", self.sinks, shape.heads), ("value_norm", self.value_norm, heads.dim)]
        found.append(("attention_embedding_norm", self.attention_embedding_norm, shape.embedding))
        for name, count in (("query_norm", shape.heads), ("key_norm", heads.number)):
            found.append((name, getattr(self, name), heads.dim * (count if all_heads else 1)))
        if self.beside is not None:
            found += [(f"{name} norm", getattr(self.beside, name), shape.hidden) for name in BESIDE_NORMS]
        if self.embedding is not None:
            found.append(("embedding_norm", self.embedding.norm, shape.hidden))
        return found

    def to_c(
        self, shape: StackShape, rotaries: tuple[Rotary, ...], cached: int, states: States, kept: list[Rows]
    ) -> CLayer:
        """The layer for C, which reads the layer `cached` of the cache, or has this one of the states.

        `kept` takes the arrays that it points to.
        """

        def place(array: Rows | None) -> int | None:
            if array is None:
                return None
            kept.append(vector(array))
            return address(kept[-1])

        shared, embedding, net = self.experts and self.experts.shared, self.embedding, self.delta_net
        gate_up, down = (shared.gate_up, shared.down) if shared else (self.gate_up, self.down)
        angles = (-1, 0) if self.rotary is None else (self.rotary, rotaries[self.rotary].rotated)
        writes = int(not shape.reads_memory and self.reads_layer is None)
        own = (CLinear(), CLinear(), None) if embedding is None else (embedding.gate.c, embedding.out.c, embedding.norm)
        return CLayer(
            *(place(getattr(self, name)) for name in (*_NORMS, *_HEAD_NORMS)),
            *(place(None if self.beside is None else getattr(self.beside, name)) for name in BESIDE_NORMS),
            *(int(self.norms_all_heads(shape)), self.window, *angles, CHeads(*self.heads_in(shape))),
            *(0 if down is None else down.inputs, 0 if net else cached, writes, int(self.keys_are_values)),
            *(shape.query_scale(self.heads_in(shape).dim), self.out_scale, place(self.sinks)),
            *(self.qkv.c, self.out.c, *(CLinear() if each is None else each.c for each in (gate_up, down))),
            *(None if self.experts is None else ct.pointer(self.experts.c), *own[:2], place(own[2])),
            *(place(self.attention_embedding_norm), int(self.output_gate), place(shared.gate if shared else None)),
            None if net is None else ct.pointer(net.to_c(states.offsets[cached], states.draft_offsets[cached], place)),
        )
