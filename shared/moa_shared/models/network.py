"""A target over the kernels: embeddings, decoder layers, final norm and head, for the rows of several sessions at once.

State: weights only. Invariant: with quantised weights a row's logits have the same bits whatever is computed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, KernelError, Layer, Linear, QuantisedMatrix, Rotary, Segment, Stack, StackShape, norm

from moa_shared.errors import ModelSourceError
from moa_shared.progress import Progress, SilentProgress

Floats = npt.NDArray[np.float32]
EMBEDDINGS, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
ACTIVATION = "silu"


class Weights(Protocol):
    """Tensors of a model by their Hugging Face names."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def blocks(self, name: str) -> QuantisedMatrix | None:
        """A matrix as the file has it, if the kernels take it so."""
        ...

    def array(self, name: str) -> Floats: ...

    def rows(self, name: str, ids: Sequence[int]) -> Floats: ...


@dataclass(frozen=True, slots=True)
class NetworkOutput:
    """What one forward gives.

    Attributes:
        logits: [rows asked, vocab] float32.
        hidden: [rows asked, hidden size] float32, after the final norm.
        state: [rows, hidden size] float32 entering the layer asked for, or None.
    """

    logits: Floats
    hidden: Floats
    state: Floats | None


class Network:
    """A Llama, Qwen2 or Qwen3 model.

    Args:
        weights: of the model.
        config: the content of its config.json.
        plain: float32 weights and activations (the reference; slow).

    Raises:
        ModelSourceError: what the kernels do not compute, by name.
    """

    def __init__(
        self, weights: Weights, config: Mapping[str, Any], progress: Progress | None = None, *, plain: bool = False
    ) -> None:
        count = int(config["num_hidden_layers"])
        with (progress or SilentProgress()).task("Packing weights", count + 1) as task:
            try:
                layers = []
                for index in range(count):
                    layers.append(read_layer(weights, config, index, plain=plain))
                    task.advance(1)
                self.stack = Stack(stack_shape(config), layers, rotary_of(config))
                self._head = read_linear(weights, [HEAD], plain=plain)
                task.advance(1)
            except KernelError as error:
                raise unsupported(error) from error
        self._weights = weights
        self._norm = weights.array(FINAL_NORM)
        self.vocab_size, self.hidden_size, self.layer_count = self._head.outputs, self._head.inputs, count

    def new_cache(self, *, half: bool = True) -> Cache:
        """An empty cache for one session.

        Args:
            half: keys and values in float16 instead of float32.
        """
        return self.stack.new_cache(half=half)

    def forward(
        self,
        tokens: Sequence[int],
        segments: Sequence[Segment],
        logits_for: Sequence[int] | npt.NDArray[np.int64],
        state_layer: int | None = None,
    ) -> NetworkOutput:
        """Runs the rows of all segments, whose caches' `length` the caller moves on afterwards.

        Args:
            tokens: of all rows, checked by the caller.
            logits_for: rows that logits and hidden state are wanted of.
            state_layer: also give the rows that enter this layer; as many as there are layers: what leaves the last.

        Raises:
            MemoryError: no room for the caches or the forward.
        """
        x, state = self.hidden(tokens, segments, state_layer)
        hidden = self.normed(x[np.asarray(logits_for, np.int64)])
        return NetworkOutput(self.logits(hidden), hidden, state)

    def hidden(
        self, tokens: Sequence[int], segments: Sequence[Segment], state_layer: int | None = None
    ) -> tuple[Floats, Floats | None]:
        """As `forward`, without head: what leaves the last layer, and the state asked for; [rows, hidden size]."""
        return self.stack.run(self._weights.rows(EMBEDDINGS, tokens), segments, state_layer)

    def logits(self, hidden: Floats) -> Floats:
        """[rows, hidden size] after the final norm to [rows, vocab]."""
        return self._head(hidden)

    def normed(self, rows: Floats) -> Floats:
        """The final norm of what leaves the last layer, [rows, hidden size]: what the head takes."""
        return norm(rows, self._norm, self.stack.shape.eps)


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


def read_layer(weights: Weights, config: Mapping[str, Any], index: int, *, plain: bool = False) -> Layer:
    """Decoder layer `index`, packed.

    Raises:
        KernelError: weights that the kernels do not take; it names them.
    """
    name = f"model.layers.{index}."
    attention, mlp = f"{name}self_attn.", f"{name}mlp."
    has_head_norms = f"{attention}q_norm.weight" in weights
    return Layer(
        attention_norm=weights.array(f"{name}input_layernorm.weight"),
        qkv=read_linear(weights, [f"{attention}{part}_proj.weight" for part in "qkv"], plain=plain),
        out=read_linear(weights, [f"{attention}o_proj.weight"], plain=plain),
        mlp_norm=weights.array(f"{name}post_attention_layernorm.weight"),
        gate_up=read_linear(weights, [f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"], plain=plain),
        down=read_linear(weights, [f"{mlp}down_proj.weight"], plain=plain),
        query_norm=weights.array(f"{attention}q_norm.weight") if has_head_norms else None,
        key_norm=weights.array(f"{attention}k_norm.weight") if has_head_norms else None,
    )


def read_linear(weights: Weights, names: Sequence[str], *, plain: bool = False) -> Linear:
    """One product of some matrices with the same input, with their biases where they have any.

    Raises:
        KernelError: weights that the kernels do not take; it names them.
    """
    parts = [weights.blocks(name) or weights.array(name) for name in names]
    biases = [name.removesuffix("weight") + "bias" for name in names]
    bias = None
    if any(name in weights for name in biases):
        bias = np.concatenate(
            [
                weights.array(name) if name in weights else np.zeros(part.shape[0], np.float32)
                for name, part in zip(biases, parts, strict=True)
            ]
        )
    try:
        return Linear(parts, bias, plain=plain)
    except KernelError as error:
        raise KernelError(f"{names[0]}: {error}") from error


def unsupported(error: KernelError) -> ModelSourceError:
    """What a user is told when the kernels do not take a target."""
    return ModelSourceError(
        f"The int8 kernels do not compute this target: {error}",
        hint="Give --execution float32 or bf16, which torch computes.",
    )
