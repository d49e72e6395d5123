"""Decoder layers of Llama, Qwen2 and Qwen3 models for the kernels, from weights by their Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import KernelError, Layer, Linear, QuantisedMatrix, Rotary, StackShape

Rows = npt.NDArray[np.float32]
Matrix = QuantisedMatrix | Rows
MakeLinear = Callable[[Sequence[Matrix], Rows | None], Linear]  # of matrices with the same input, and their bias
ACTIVATION = "silu"


class Weights(Protocol):
    """Tensors by name, as `moa_shared.models.WeightReader` has them."""

    def names(self) -> Collection[str]:
        """What is stored; a tied head need not be among them, and is read all the same."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """[outputs, inputs] of a matrix."""
        ...

    def blocks(self, name: str) -> QuantisedMatrix | None:
        """A matrix in blocks, as the file has it; None where it is stored in floats."""
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
) -> Layer:
    """One decoder layer, with biases (Qwen2) and norms of queries and keys (Qwen3) where it has them.

    Args:
        prefix: of its tensors' names.
        reads_memory: keys and values come from elsewhere: only queries are projected.
        input_norm: false: the layer has none before attention (EAGLE's).

    Raises:
        KernelError: weights that the kernels do not take; it names them.
    """
    names = weights.names()

    def vector(name: str) -> Rows | None:
        return weights.array(f"{prefix}.{name}") if f"{prefix}.{name}" in names else None

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

    queries = ["self_attn.q_proj"] if reads_memory else [f"self_attn.{each}_proj" for each in "qkv"]
    return Layer(
        attention_norm=weights.array(f"{prefix}.input_layernorm.weight") if input_norm else None,
        qkv=linear(*queries),
        out=linear("self_attn.o_proj"),
        mlp_norm=weights.array(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        query_norm=vector("self_attn.q_norm.weight"),
        key_norm=None if reads_memory else vector("self_attn.k_norm.weight"),
    )


def stack_shape(config: Mapping[str, Any]) -> StackShape:
    """Sizes of a model's decoder layers, from its config.json.

    Raises:
        KernelError: another activation than SiLU.
    """
    if config.get("hidden_act", ACTIVATION) != ACTIVATION:
        raise KernelError(f"The activation {config['hidden_act']!r} is not computed by the kernels.")
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    return StackShape(
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        eps=float(config["rms_norm_eps"]),
    )


def rotary_of(config: Mapping[str, Any]) -> Rotary:
    """Rotary angles of a model, from its config.json in transformers' present or former spelling."""
    parameters = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    parameters.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return Rotary(stack_shape(config).head_dim, parameters, int(config.get("max_position_embeddings") or 8192))
