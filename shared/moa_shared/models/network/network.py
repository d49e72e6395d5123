"""A target over the kernels: embeddings, decoder layers, final norm and head, for the rows of several sessions at once.

State: weights only. Invariant: with quantised weights a row's logits have the same bits whatever is computed with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import (
    F16,
    BesideNorms,
    Cache,
    DeltaNet,
    Experts,
    KernelError,
    Layer,
    LayerEmbedding,
    Linear,
    QuantisedMatrix,
    Segment,
    SharedExpert,
    Stack,
    Tiles,
    norm,
)

from moa_shared.models.network.families import FAMILIES, Family, Norms
from moa_shared.models.network.plan import DeltaNetPlan, LayerPlan, MixturePlan, plan_of
from moa_shared.models.network.served import unsupported
from moa_shared.models.storage import tensors
from moa_shared.programs.progress import Progress

Rows = npt.NDArray[np.float32]
Matrix = QuantisedMatrix | Tiles | Rows
MakeLinear = Callable[[Sequence[Matrix], Rows | None], Linear]  # of matrices with the same input, and their bias
_LLAMA = FAMILIES["llama"]
_KEY_NORM = "self_attn.k_norm.weight"


class Weights(Protocol):  # as `moa_shared.models.WeightReader` is
    def names(self) -> Collection[str]: ...  # without a tied head, which is read all the same
    def shape(self, name: str) -> tuple[int, ...]: ...
    def blocks(self, name: str) -> QuantisedMatrix | Tiles | None: ...  # None where it is stored in floats
    def array(self, name: str) -> Rows: ...
    def rows(self, name: str, ids: npt.NDArray[np.int64] | Sequence[int]) -> Rows: ...


def read_matrix(weights: Weights, name: str) -> Matrix:
    blocks = weights.blocks(name)
    return weights.array(name) if blocks is None else blocks


def read_layer(
    weights: Weights,
    prefix: str,
    make_linear: MakeLinear,
    *,
    reads_memory: bool = False,
    input_norm: bool = True,
    family: Family = _LLAMA,
    plan: LayerPlan | None = None,
) -> Layer:
    """One decoder layer, with biases (Qwen2) and norms of queries and keys (Qwen3) where it has them.

    `reads_memory`: keys and values come from elsewhere: only queries are projected. `input_norm`: false: the layer has
    none before attention (EAGLE's). `plan`: None: it sees all positions, and is turned by the stack's first angles.
    """
    plan = plan or LayerPlan()
    parts = _Parts(weights, prefix, make_linear, family, frozenset(weights.names()))
    sizes, norms, mixture, net = plan.sizes, family.norms, plan.mixture, plan.delta_net
    has_keys = not reads_memory and (sizes is None or sizes.reads_layer is None)
    keys_are_values = sizes is not None and sizes.keys_are_values
    if net is None:
        parts.require([each for each in family.needed if has_keys or each != _KEY_NORM])
    else:
        norms = Norms()
    dense = mixture is None or mixture.beside
    out = parts.linear("self_attn.o_proj" if net is None else "linear_attn.out_proj")
    gate_up = ["mlp.gate_up_proj"] if family.fused else ["mlp.gate_proj", "mlp.up_proj"]
    parts_of_heads = [
        "gated_q" if family.output_gate else "q",
        *("" if not has_keys else "k" if keys_are_values else "kv"),
    ]
    projected = [f"self_attn.{each}_proj" for each in parts_of_heads]
    if family.fused:
        projected = ["self_attn.qkv_proj"]
    elif net is not None:
        projected = parts.of_delta_net("in_proj_qkv", "_proj")
    scalar = parts.vector("layer_scalar")
    return Layer(
        attention_norm=parts.norm(norms.attention) if input_norm else None,
        qkv=parts.linear(*projected),
        out=out,
        mlp_norm=parts.norm(norms.mlp),
        gate_up=parts.linear(*gate_up) if dense else None,
        down=parts.linear("mlp.down_proj") if dense else None,
        query_norm=parts.head_norm("q_norm"),
        key_norm=parts.head_norm("k_norm") if has_keys else None,
        attention_out_norm=parts.norm(norms.attention_out),
        mlp_out_norm=parts.norm(norms.mlp_out),
        window=plan.window,
        rotary=plan.rotary,
        sinks=parts.vector("self_attn.sinks"),
        experts=None if mixture is None else parts.experts(mixture, in_numpy=not out.compiled),
        beside=parts.beside() if mixture is not None and mixture.beside else None,
        heads=None if sizes is None else sizes.heads,
        inner=None if sizes is None else sizes.inner,
        value_norm=np.ones(sizes.heads.dim, np.float32) if sizes and family.value_norm and has_keys else None,
        keys_are_values=keys_are_values,
        reads_layer=None if sizes is None else sizes.reads_layer,
        embedding=parts.embedding() if plan.embeds else None,
        out_scale=1.0 if scalar is None else float(scalar[0]),
        output_gate=family.output_gate and net is None,
        delta_net=None if net is None else parts.delta_net(net, in_numpy=not out.compiled),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    weights: Weights
    prefix: str
    make_linear: MakeLinear
    family: Family
    names: frozenset[str]

    def require(self, tensors: Sequence[str]) -> None:
        if missing := [each for each in tensors if f"{self.prefix}.{each}" not in self.names]:
            raise KernelError(f"{self.prefix} lacks {', '.join(missing)}.")

    def vector(self, name: str) -> Rows | None:
        return self.needed(name) if f"{self.prefix}.{name}" in self.names else None

    def needed(self, name: str) -> Rows:
        found = self.weights.array(f"{self.prefix}.{name}")
        if found.ndim != 1 or not len(found):
            raise KernelError(f"{self.prefix}.{name} has the shape {found.shape}, expected numbers in a row.")
        return found

    def norm(self, module: str | None) -> Rows | None:
        return None if module is None else self.needed_norm(module)

    def needed_norm(self, module: str) -> Rows:
        return offset_norm(self.needed(f"{module}.weight"), self.family)

    def head_norm(self, name: str) -> Rows | None:
        found = self.vector(f"self_attn.{name}.weight")
        return None if found is None else offset_norm(found, self.family)

    def linear(self, *modules: str) -> Linear:
        matrices = [read_matrix(self.weights, f"{self.prefix}.{module}.weight") for module in modules]
        biases = [self.vector(f"{module}.bias") for module in modules]
        bias = None
        if any(each is not None for each in biases):
            none = [np.zeros(matrix.shape[0], np.float32) for matrix in matrices]
            bias = np.concatenate([zeros if each is None else each for zeros, each in zip(none, biases, strict=True)])
        try:
            return self.make_linear(matrices, bias)
        except KernelError as error:
            raise KernelError(f"{self.prefix}.{modules[0]}: {error}") from error

    def of_delta_net(self, fused: str, ending: str) -> list[str]:
        """The modules of queries, keys and values: one, or one each (OLMo's)."""
        if f"{self.prefix}.linear_attn.{fused}.weight" in self.names:
            return [f"linear_attn.{fused}"]
        return [f"linear_attn.{each}{ending}" for each in "qkv"]

    def delta_net(self, plan: DeltaNetPlan, *, in_numpy: bool) -> DeltaNet:
        def array(module: str) -> Rows:
            return self.weights.array(f"{self.prefix}.{module}.weight")

        said = [array(f"linear_attn.in_proj_{each}") for each in "ab"]
        convolution = np.concatenate([array(module) for module in self.of_delta_net("conv1d", "_conv1d")])
        negative_rate = self.vector("linear_attn.A")  # GGUF's
        return DeltaNet(
            plan.state,
            gate=self.linear("linear_attn.in_proj_z"),
            decay_beta=Linear(said, plain=True, reference=in_numpy),
            convolution=convolution.reshape(len(convolution), -1),
            decay_rate=np.exp(self.needed("linear_attn.A_log")) if negative_rate is None else -negative_rate,
            time_bias=self.needed("linear_attn.dt_bias"),
            norm=self.needed("linear_attn.norm.weight"),
            eps=plan.eps,
            beta_scale=plan.beta_scale,
        )

    def shared_expert(self) -> SharedExpert:
        gate = self.weights.array(f"{self.prefix}.mlp.shared_expert_gate.weight").reshape(-1)
        gate_up = self.linear("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
        return SharedExpert(gate_up, self.linear("mlp.shared_expert.down_proj"), gate)

    def experts(self, plan: MixturePlan, *, in_numpy: bool) -> Experts:
        """By one product each; in numpy those are read that rows choose."""
        scores = self.weights.array(f"{self.prefix}.mlp.gate.weight")
        if len(scores) != plan.count:
            raise KernelError(f"{self.prefix}.mlp.gate scores {len(scores)} experts, expected {plan.count}.")
        router = Linear([scores], self.vector("mlp.gate.bias"), plain=True, reference=in_numpy)

        def read(number: int) -> tuple[Linear, Linear]:
            expert = f"mlp.experts.{number}"
            return self.linear(f"{expert}.gate_proj", f"{expert}.up_proj"), self.linear(f"{expert}.down_proj")

        try:
            scales = self.vector("mlp.gate.expert_scale")
            shared = self.shared_expert() if plan.shared else None
            found = Experts(router, plan.chosen, read, weighs_all=plan.weighs_all, scales=scales, shared=shared)
            if found.inner != plan.inner:
                raise KernelError(f"Its experts are {found.inner} wide, expected {plan.inner}.")
            if shared is not None and shared.down.inputs != plan.shared:
                raise KernelError(f"Its shared expert is {shared.down.inputs} wide, expected {plan.shared}.")
            return found
        except KernelError as error:
            if str(error).startswith(self.prefix):  # of one expert's matrix, which it names
                raise
            raise KernelError(f"{self.prefix}.mlp: {error}") from error

    def beside(self) -> BesideNorms:
        self.require(["mlp.gate.scale", "mlp.gate.expert_scale"])
        scale = self.needed("mlp.gate.scale")
        return BesideNorms(
            router=scale * np.float32(len(scale) ** -0.5),
            experts=self.needed_norm("pre_feedforward_layernorm_2"),
            experts_out=self.needed_norm("post_feedforward_layernorm_2"),
            mlp_out=self.needed_norm("post_feedforward_layernorm_1"),
        )

    def embedding(self) -> LayerEmbedding:
        gate, out = self.linear("per_layer_input_gate"), self.linear("per_layer_projection")
        return LayerEmbedding(gate, out, self.needed_norm("post_per_layer_input_norm"))


def offset_norm(weight: Rows, family: Family) -> Rows:
    return weight + np.float32(family.norm_offset) if family.norm_offset else weight


class LayerEmbeddings:
    """The embeddings of all layers. `width`: of one layer's."""

    def __init__(self, weights: Weights, make_linear: MakeLinear, layers: int, width: int, eps: float) -> None:
        self._weights, self._width, self._eps = weights, width, eps
        self.kept: Sequence[int] = range(layers)  # whose are given
        for name in (tensors.LAYER_EMBEDDINGS, tensors.LAYER_PROJECTION):
            shape = weights.shape(name)
            if len(shape) != 2 or shape[name == tensors.LAYER_EMBEDDINGS] != layers * width:
                raise KernelError(f"{name} has the shape {shape}, expected {layers * width} for {layers} layers.")
        self._projection: Linear = make_linear([read_matrix(weights, tensors.LAYER_PROJECTION)], None)
        self._norm = weights.array(tensors.LAYER_PROJECTION_NORM)
        if self._norm.shape != (width,):
            raise KernelError(f"{tensors.LAYER_PROJECTION_NORM} has the shape {self._norm.shape}, expected ({width},).")

    def __call__(self, tokens: Sequence[int], entering: Rows) -> Rows:
        """[rows, layers, width] of tokens, and the rows that enter the first layer."""
        size = (len(tokens), -1, self._width)
        own = self._weights.rows(tensors.LAYER_EMBEDDINGS, tokens).reshape(size)[:, list(self.kept)]
        projected = self._projection(entering) * np.float32(self._projection.inputs**-0.5)
        projected = projected.reshape(size)[:, list(self.kept)].reshape(-1, self._width)
        normed = norm(projected, self._norm, self._eps).reshape(own.shape)
        added: Rows = (normed + own * np.float32(self._width**0.5)) * np.float32(0.5**0.5)
        return added


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
        with (progress or Progress()).task("Packing weights", count + 1) as task:
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
                self._head = make_linear([read_matrix(weights, tensors.HEAD)])
                self.vocab_size, self.hidden_size, self.layer_count = self._head.outputs, self._head.inputs, count
                self._norm = offset_norm(weights.array(tensors.FINAL_NORM), plan.family)
                final, table = self._norm.shape, weights.shape(tensors.EMBEDDINGS)
                head = self.vocab_size, self.hidden_size
                if table != head or not final == (self.hidden_size,) == (plan.shape.hidden,):
                    raise KernelError(f"The final norm has the shape {final}, embeddings {table}, head {head}.")
                task.advance(1)
            except KernelError as error:
                raise unsupported(error, config) from error
        self._weights = weights

    def new_cache(self, *, kv: str = F16) -> Cache:
        """An empty cache for one session; `kv`: one of `moa_kernels.KV_FORMATS`."""
        return self.stack.new_cache(kv=kv)

    def different_layers(self) -> list[int]:
        """The first layer of each kind, the last, and those that these read."""
        kinds: dict[tuple[LayerPlan, bool], int] = {}
        for index, (layer, plan) in enumerate(zip(self.stack.layers, self.plan.layers, strict=True)):
            kinds.setdefault((plan, layer.out_scale == 1), index)
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
        short._embeddings = copy.copy(self._embeddings)
        if short._embeddings is not None:
            short._embeddings.kept = kept
        return short

    def forward(
        self,
        tokens: Sequence[int],
        segments: Sequence[Segment],
        logits_for: Sequence[int] | npt.NDArray[np.int64],
        state_layers: Sequence[int] = (),
    ) -> tuple[Rows, Rows, dict[int, Rows]]:
        """Runs the rows of all segments, whose caches' `length` the caller moves on afterwards.

        `logits_for`: rows whose logits, [rows, vocab], and hidden state after the final norm are wanted.
        `state_layers`: also give the rows that enter these; as many as there are layers: what leaves the last.
        """
        x, states = self.hidden(tokens, segments, state_layers)
        hidden = self.normed(x[np.asarray(logits_for, np.int64)])
        return self.logits(hidden), hidden, states

    def hidden(
        self, tokens: Sequence[int], segments: Sequence[Segment], state_layers: Sequence[int] = ()
    ) -> tuple[Rows, dict[int, Rows]]:
        """As `forward`, without head: what leaves the last layer, and the states asked for; [rows, hidden size]."""
        rows = self._weights.rows(tensors.EMBEDDINGS, tokens)
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
