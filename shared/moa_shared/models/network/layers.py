"""Decoder layers of the families for the kernels, from weights by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import Experts, KernelError, Layer, Linear, QuantisedMatrix, StackShape, Tiles

from moa_shared.models.network.description import FAMILIES, Description
from moa_shared.models.network.mixture import MixturePlan
from moa_shared.models.network.plan import LayerPlan, plan_of

Rows = npt.NDArray[np.float32]
Matrix = QuantisedMatrix | Tiles | Rows
MakeLinear = Callable[[Sequence[Matrix], Rows | None], Linear]  # of matrices with the same input, and their bias
_LLAMA = FAMILIES["llama"]


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
    names = frozenset(weights.names())
    missing = [each for each in description.needed if f"{prefix}.{each}" not in names]
    if missing:
        raise KernelError(f"{prefix} lacks {', '.join(missing)}.")

    def vector(name: str) -> Rows | None:
        return weights.array(f"{prefix}.{name}") if f"{prefix}.{name}" in names else None

    def norm(module: str | None) -> Rows | None:
        return None if module is None else offset_norm(weights.array(f"{prefix}.{module}.weight"), description)

    def head_norm(name: str) -> Rows | None:
        found = vector(f"self_attn.{name}.weight")
        return None if found is None else offset_norm(found, description)

    def linear(*modules: str) -> Linear:
        matrices = [read_matrix(weights, f"{prefix}.{module}.weight") for module in modules]
        biases = [vector(f"{module}.bias") for module in modules]
        bias = None
        if any(each is not None for each in biases):
            whole = [
                np.zeros(matrix.shape[0], np.float32) if each is None else each
                for matrix, each in zip(matrices, biases, strict=True)
            ]
            bias = np.concatenate(whole)
        try:
            return make_linear(matrices, bias)
        except KernelError as error:
            raise KernelError(f"{prefix}.{modules[0]}: {error}") from error

    def experts(plan: MixturePlan) -> Experts:
        """By one product each; in numpy those are read that rows choose."""
        scores = weights.array(f"{prefix}.mlp.gate.weight")
        if len(scores) != plan.count:
            raise KernelError(f"{prefix}.mlp.gate scores {len(scores)} experts, expected {plan.count}.")
        router = Linear([scores], vector("mlp.gate.bias"), plain=True, reference=not out.compiled)

        def read(number: int) -> tuple[Linear, Linear]:
            expert = f"mlp.experts.{number}"
            return linear(f"{expert}.gate_proj", f"{expert}.up_proj"), linear(f"{expert}.down_proj")

        try:
            found = Experts(router, plan.chosen, read, weighs_all=plan.weighs_all)
            if found.inner != plan.inner:
                raise KernelError(f"Its experts are {found.inner} wide, expected {plan.inner}.")
            return found
        except KernelError as error:
            if str(error).startswith(prefix):  # of one expert's matrix, which it names
                raise
            raise KernelError(f"{prefix}.mlp: {error}") from error

    plan = plan or LayerPlan()
    norms, dense, out = description.norms, plan.mixture is None, linear("self_attn.o_proj")
    gate_up = ["mlp.gate_up_proj"] if description.fused else ["mlp.gate_proj", "mlp.up_proj"]
    queries = ["self_attn.q_proj"] if reads_memory else [f"self_attn.{each}_proj" for each in "qkv"]
    return Layer(
        attention_norm=norm(norms.attention) if input_norm else None,
        qkv=linear(*(["self_attn.qkv_proj"] if description.fused else queries)),
        out=out,
        mlp_norm=norm(norms.mlp),
        gate_up=linear(*gate_up) if dense else None,
        down=linear("mlp.down_proj") if dense else None,
        query_norm=head_norm("q_norm"),
        key_norm=None if reads_memory else head_norm("k_norm"),
        attention_out_norm=norm(norms.attention_out),
        mlp_out_norm=norm(norms.mlp_out),
        window=plan.window,
        rotary=plan.rotary,
        sinks=vector("self_attn.sinks"),
        experts=None if plan.mixture is None else experts(plan.mixture),
    )


def offset_norm(weight: Rows, description: Description) -> Rows:
    """A norm's weights as they are multiplied by."""
    return weight + np.float32(description.norm_offset) if description.norm_offset else weight


def stack_shape(config: Mapping[str, Any]) -> StackShape:
    """Sizes of a model's decoder layers, from its config.json.

    Raises:
        KernelError: what the kernels do not compute.
    """
    return plan_of(config).shape
