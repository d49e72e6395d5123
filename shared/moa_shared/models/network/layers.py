"""Decoder layers of the families for the kernels, from weights by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import (
    BesideNorms,
    Experts,
    KernelError,
    Layer,
    LayerEmbedding,
    Linear,
    QuantisedMatrix,
    StackShape,
    Tiles,
)

from moa_shared.models.network.description import FAMILIES, Description
from moa_shared.models.network.mixture import MixturePlan
from moa_shared.models.network.plan import LayerPlan, plan_of

Rows = npt.NDArray[np.float32]
Matrix = QuantisedMatrix | Tiles | Rows
MakeLinear = Callable[[Sequence[Matrix], Rows | None], Linear]  # of matrices with the same input, and their bias
_LLAMA = FAMILIES["llama"]
_KEY_NORM = "self_attn.k_norm.weight"


class Weights(Protocol):
    """Tensors by name, as `moa_shared.models.WeightReader` has them."""

    def names(self) -> Collection[str]:
        """What is stored; a tied head need not be among them, and is read all the same."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """[outputs, inputs] of a matrix."""
        ...

    def blocks(self, name: str) -> QuantisedMatrix | Tiles | None:
        """A matrix in blocks, as the file has it, or packed already; None where it is stored in floats."""
        ...

    def array(self, name: str) -> Rows:
        """A whole tensor in float32."""
        ...

    def rows(self, name: str, ids: npt.NDArray[np.int64] | Sequence[int]) -> Rows:
        """Some rows of a matrix in float32, [ids, width]."""
        ...


def read_matrix(weights: Weights, name: str) -> Matrix:
    """A matrix as the file has it, if the kernels take it so; else in float32."""
    blocks = weights.blocks(name)
    return weights.array(name) if blocks is None else blocks


def read_layer(
    weights: Weights,
    prefix: str,
    make_linear: MakeLinear,
    *,
    reads_memory: bool = False,
    input_norm: bool = True,
    description: Description = _LLAMA,
    plan: LayerPlan | None = None,
) -> Layer:
    """One decoder layer, with biases (Qwen2) and norms of queries and keys (Qwen3) where it has them.

    Args:
        prefix: of its tensors' names.
        reads_memory: keys and values come from elsewhere: only queries are projected.
        input_norm: false: the layer has none before attention (EAGLE's).
        description: of the layer's family.
        plan: of this layer; None: it sees all positions, and is turned by the stack's first angles.

    Raises:
        KernelError: weights that the kernels do not take; it names them.
    """
    plan = plan or LayerPlan()
    parts = _Parts(weights, prefix, make_linear, description, frozenset(weights.names()))
    sizes, norms, mixture = plan.sizes, description.norms, plan.mixture
    has_keys = not reads_memory and (sizes is None or sizes.reads_layer is None)
    keys_are_values = sizes is not None and sizes.keys_are_values
    parts.require([each for each in description.needed if has_keys or each != _KEY_NORM])
    dense, out = mixture is None or mixture.beside, parts.linear("self_attn.o_proj")
    gate_up = ["mlp.gate_up_proj"] if description.fused else ["mlp.gate_proj", "mlp.up_proj"]
    projected = [f"self_attn.{each}_proj" for each in ("q" if not has_keys else "qk" if keys_are_values else "qkv")]
    scalar = parts.vector("layer_scalar")
    return Layer(
        attention_norm=parts.norm(norms.attention) if input_norm else None,
        qkv=parts.linear(*(["self_attn.qkv_proj"] if description.fused else projected)),
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
        value_norm=np.ones(sizes.heads.dim, np.float32) if sizes and description.value_norm and has_keys else None,
        keys_are_values=keys_are_values,
        reads_layer=None if sizes is None else sizes.reads_layer,
        embedding=parts.embedding() if plan.embeds else None,
        out_scale=1.0 if scalar is None else float(scalar[0]),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one layer, by the names of their modules."""

    weights: Weights
    prefix: str
    make_linear: MakeLinear
    description: Description
    names: frozenset[str]

    def require(self, tensors: Sequence[str]) -> None:
        missing = [each for each in tensors if f"{self.prefix}.{each}" not in self.names]
        if missing:
            raise KernelError(f"{self.prefix} lacks {', '.join(missing)}.")

    def vector(self, name: str) -> Rows | None:
        """A tensor that it may have."""
        full = f"{self.prefix}.{name}"
        return self.weights.array(full) if full in self.names else None

    def norm(self, module: str | None) -> Rows | None:
        return None if module is None else self.needed_norm(module)

    def needed_norm(self, module: str) -> Rows:
        return offset_norm(self.weights.array(f"{self.prefix}.{module}.weight"), self.description)

    def head_norm(self, name: str) -> Rows | None:
        found = self.vector(f"self_attn.{name}.weight")
        return None if found is None else offset_norm(found, self.description)

    def linear(self, *modules: str) -> Linear:
        """One product of modules with the same input."""
        matrices = [read_matrix(self.weights, f"{self.prefix}.{module}.weight") for module in modules]
        biases = [self.vector(f"{module}.bias") for module in modules]
        bias = None
        if any(each is not None for each in biases):
            whole = [
                np.zeros(matrix.shape[0], np.float32) if each is None else each
                for matrix, each in zip(matrices, biases, strict=True)
            ]
            bias = np.concatenate(whole)
        try:
            return self.make_linear(matrices, bias)
        except KernelError as error:
            raise KernelError(f"{self.prefix}.{modules[0]}: {error}") from error

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
            found = Experts(router, plan.chosen, read, weighs_all=plan.weighs_all, scales=scales)
            if found.inner != plan.inner:
                raise KernelError(f"Its experts are {found.inner} wide, expected {plan.inner}.")
            return found
        except KernelError as error:
            if str(error).startswith(self.prefix):  # of one expert's matrix, which it names
                raise
            raise KernelError(f"{self.prefix}.mlp: {error}") from error

    def beside(self) -> BesideNorms:
        """Gemma 4's, whose router reads rows that are normed and scaled."""
        self.require(["mlp.gate.scale", "mlp.gate.expert_scale"])
        scale = self.weights.array(f"{self.prefix}.mlp.gate.scale")
        return BesideNorms(
            router=scale * np.float32(len(scale) ** -0.5),
            experts=self.needed_norm("pre_feedforward_layernorm_2"),
            experts_out=self.needed_norm("post_feedforward_layernorm_2"),
            mlp_out=self.needed_norm("post_feedforward_layernorm_1"),
        )

    def embedding(self) -> LayerEmbedding:
        gate, out = self.linear("per_layer_input_gate"), self.linear("per_layer_projection")
        return LayerEmbedding(gate, out, self.needed_norm("post_per_layer_input_norm"))


def offset_norm(weight: Rows, description: Description) -> Rows:
    """A norm's weights as they are multiplied by."""
    return weight + np.float32(description.norm_offset) if description.norm_offset else weight


def stack_shape(config: Mapping[str, Any]) -> StackShape:
    """Sizes of a model's decoder layers, from its config.json.

    Raises:
        KernelError: what the kernels do not compute.
    """
    return plan_of(config).shape
