"""Where a drafter's weights come from: its checkpoint, and the parts of the target that it takes over as they are.

Names are Hugging Face's, those of a checkpoint the authors'. No state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import Layer, Linear, QuantisedMatrix, quantised
from moa_kernels.blocks import joined

from moa_shared.drafter.arithmetic import Arithmetic, Rows
from moa_shared.errors import ModelSourceError
from moa_shared.models.weights import EMBEDDINGS, HEAD

DRAFT_IDS = "draft_ids"  # exact in float32 up to 16 million tokens

Ids = npt.NDArray[np.int64] | Sequence[int]
_HEAD_ROWS = 4096  # rows of a head in float32 at once: bounds what is held beside the packed ones


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

    def rows(self, name: str, ids: Ids) -> Rows:
        """Some rows of a matrix in float32, [ids, width]."""
        ...


class ArrayWeights:
    """Float tensors that are in memory, or are read when asked for.

    Each method raises ModelSourceError where there is no such tensor.
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[np.floating]]) -> None:
        self._arrays = arrays

    def names(self) -> Collection[str]:
        return self._arrays.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array(name).shape

    def blocks(self, name: str) -> QuantisedMatrix | None:
        return None

    def array(self, name: str) -> Rows:
        return np.asarray(self._array(name), np.float32)

    def rows(self, name: str, ids: Ids) -> Rows:
        return np.asarray(self._array(name)[np.asarray(ids)], np.float32)

    def _array(self, name: str) -> npt.NDArray[np.floating]:
        if name not in self._arrays:
            raise ModelSourceError(f"The weights hold no tensor {name}.")
        return self._arrays[name]


def read_layer(weights: Weights, prefix: str, arithmetic: Arithmetic, *, reads_memory: bool = False) -> Layer:
    """One decoder layer: Llama's, Qwen2's with biases, Qwen3's with norms of queries and keys."""
    names = weights.names()

    def vector(name: str) -> Rows | None:
        return weights.array(f"{prefix}.{name}") if f"{prefix}.{name}" in names else None

    def linear(*modules: str) -> Linear:
        biases = [vector(f"{module}.bias") for module in modules]
        present = [bias for bias in biases if bias is not None]
        matrices = [_matrix(weights, f"{prefix}.{module}.weight") for module in modules]
        return arithmetic.linear(matrices, np.concatenate(present) if present else None)

    queries = ["self_attn.q_proj"] if reads_memory else [f"self_attn.{each}_proj" for each in "qkv"]
    return Layer(
        attention_norm=weights.array(f"{prefix}.input_layernorm.weight"),
        qkv=linear(*queries),
        out=linear("self_attn.o_proj"),
        mlp_norm=weights.array(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        query_norm=vector("self_attn.q_norm.weight"),
        key_norm=None if reads_memory else vector("self_attn.k_norm.weight"),
    )


def read_head(weights: Weights, ids: Ids | None, arithmetic: Arithmetic) -> Linear:
    """The output weights of these tokens; of all where None."""
    blocks = weights.blocks(HEAD)
    if blocks is not None:
        return arithmetic.linear([blocks if ids is None else blocks.rows(ids)])
    chosen = np.arange(weights.shape(HEAD)[0]) if ids is None else np.asarray(ids)
    if arithmetic.plain or arithmetic.in_numpy:
        return arithmetic.linear([weights.rows(HEAD, chosen)])
    batches = range(0, len(chosen), _HEAD_ROWS)
    parts = [quantised(weights.rows(HEAD, chosen[start : start + _HEAD_ROWS])) for start in batches]
    return arithmetic.linear([joined(parts)])


def draft_ids(own: Weights) -> npt.NDArray[np.int64] | None:
    """The target's token of each column of a drafter's logits; None: the same."""
    return own.array(DRAFT_IDS).astype(np.int64) if DRAFT_IDS in own.names() else None


def check_tables(weights: Weights, vocab_size: int, hidden_size: int) -> None:
    """Raises ModelSourceError where embeddings or head have other shapes than a drafter needs."""
    for name in (EMBEDDINGS, HEAD):
        shape = weights.shape(name)
        if shape != (vocab_size, hidden_size):
            raise ModelSourceError(
                f"{name} of the target has the shape {list(shape)}, the drafter needs {[vocab_size, hidden_size]}.",
                hint="Give a drafter that was trained for this target.",
            )


def _matrix(weights: Weights, name: str) -> QuantisedMatrix | Rows:
    blocks = weights.blocks(name)
    return weights.array(name) if blocks is None else blocks
