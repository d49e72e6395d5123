"""What the kinds share: a layer's shapes, and how a published checkpoint becomes one of ours. Pure.

Invariant: what fits no drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from moa_kernels.transformer.layer import SILU

from moa_shared.drafter.kinds.config import EACH, JOINT, DrafterConfig, Kind, MakeRows, Published, Shapes
from moa_shared.drafter.layers.weights import Arithmetic, Rows
from moa_shared.errors import CheckpointError
from moa_shared.models.network.network import Weights, stack_shape

if TYPE_CHECKING:
    import torch

    from moa_shared.drafter.kinds.config import Device, Tensors, TorchRows

OWN_EMBEDDINGS, OWN_HEAD = "embed_tokens.weight", "lm_head.weight"
OVERRIDE = "moa_state_entries"  # a key for config.json, by which a user corrects numbers of layers
IGNORED = ("rotary_emb.inv_freq",)  # ends of names: of older versions of transformers, made from the configuration
_THETA = 10_000.0  # where a configuration names none, whatever the target's is
ANOTHER = "Give a drafter that was trained for this target, or --drafter none."


def layer_shapes(name: str, model: int, queries: int, keys: int, inner: int) -> Shapes:
    """Shapes of one layer with the prefix `name`; widths are of its rows, all query heads, all key heads, its MLP."""
    return {
        f"{name}.self_attn.q_proj.weight": (queries, model),
        f"{name}.self_attn.k_proj.weight": (keys, model),
        f"{name}.self_attn.v_proj.weight": (keys, model),
        f"{name}.self_attn.o_proj.weight": (model, queries),
        f"{name}.mlp.gate_proj.weight": (inner, model),
        f"{name}.mlp.up_proj.weight": (inner, model),
        f"{name}.mlp.down_proj.weight": (model, inner),
        f"{name}.input_layernorm.weight": (model,),
        f"{name}.post_attention_layernorm.weight": (model,),
    }


def own_layer_shapes(config: DrafterConfig, biased: str = "qkv") -> Shapes:
    """Shapes of the drafter's own layers; `biased`: projections that have a bias where the configuration says so."""
    query, keys = config.heads * config.head_dim, config.sa_kv_heads * config.head_dim
    widths = {"q": query, "k": keys, "v": keys, "o": config.hidden_size}
    shapes: Shapes = {}
    for name in config.traits.layers(config):
        shapes |= layer_shapes(name, config.hidden_size, query, keys, config.sa_mlp)
        if config.head_norms:
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (config.head_dim,) for part in "qk"}
        if config.qkv_bias:
            shapes |= {f"{name}.self_attn.{part}_proj.bias": (widths[part],) for part in biased}
    return shapes


def has_windows(sizes: Mapping[str, Any]) -> bool:
    """Whether layers see a window of the text only, which is computed for no drafter."""
    return bool(sizes.get("use_sliding_window")) or "sliding_attention" in (sizes.get("layer_types") or ())


def check_sizes(of: Published, layout: str, theirs: Mapping[str, Any]) -> None:
    """Refuses a checkpoint for a target of other sizes, or with an activation that is not computed.

    `theirs`: by key of the target's configuration; None where the checkpoint does not say.
    """
    words = {"hidden_size": "hidden size", "vocab_size": "vocabulary size"}
    words |= {"num_attention_heads": "number of attention heads", "num_hidden_layers": "number of layers"}
    activation = of.sizes.get("hidden_act", SILU)
    if activation != SILU:
        raise CheckpointError(f"{of.where} has the activation {activation}, moa computes {SILU}.", hint=ANOTHER)
    for key, size in theirs.items():
        if size is not None and size != of.target[key]:
            raise CheckpointError(
                f"The {layout} checkpoint {of.where} is for a target whose {words[key]} is {size}, "
                f"{of.target_id} has {of.target[key]}.",
                hint=ANOTHER,
            )


def check_whole(of: Published, layout: str, projection: str) -> list[str]:
    """As `check_sizes`, of a checkpoint that says the sizes of its target itself.

    `projection`: the tensor whose outputs are as many as the target's hidden size. Returns the tensors that are kept:
    not embeddings, which are frozen, nor what older transformers stored.
    """
    table, rows, said = of.shapes.get(OWN_EMBEDDINGS), of.shapes.get(projection), of.config.get
    theirs = {"hidden_size": rows[0] if rows else said("hidden_size")}
    theirs |= {"vocab_size": table[0] if table else said("vocab_size")}
    check_sizes(of, layout, theirs | {"num_attention_heads": said("num_attention_heads")})
    return [name for name in of.shapes if name != OWN_EMBEDDINGS and not name.endswith(IGNORED)]


def target_sizes(target: Mapping[str, Any]) -> dict[str, Any]:
    """What a drafter's configuration says of its target."""
    stack = stack_shape(target)
    return {
        "vocab_size": int(target["vocab_size"]),
        "hidden_size": stack.hidden,
        "target_layers": int(target["num_hidden_layers"]),
        "target_heads": stack.heads,
        "target_kv_heads": stack.kv_heads,
        "target_head_dim": stack.head_dim,
    }


def unused_sizes(target: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a configuration that mean nothing to what has neither memory nor its encoder."""
    heads = stack_shape(target).kv_heads
    return {"ca_kv_heads": heads, "ca_mlp": 1, "lsa_heads": heads, "lsa_kv_heads": heads, "lsa_mlp": 1}


def own_sizes(of: Published, shapes: Shapes, heads: int, head_dim: int, eps: float) -> dict[str, Any]:
    """What a configuration says of layers of the drafter's own, whose tensors have these shapes, by our names."""
    stack = stack_shape(of.target)
    return {
        **target_sizes(of.target),
        **unused_sizes(of.target),
        "sa_kv_heads": shapes["layers.0.self_attn.k_proj.weight"][0] // head_dim,
        "sa_mlp": shapes["layers.0.mlp.up_proj.weight"][0],
        "own_layers": sum(name.endswith(".mlp.up_proj.weight") for name in shapes),
        "own_heads": 0 if heads == stack.heads else heads,
        "own_head_dim": 0 if head_dim == stack.head_dim else head_dim,
        "head_norms": "layers.0.self_attn.q_norm.weight" in shapes,
        "rms_norm_eps": float(of.sizes.get("rms_norm_eps", eps)),
        "rope_parameters": rope_of(of.sizes, _THETA),
    }


def read_entries(of: Published, states: int, *, inputs: Any, outputs: Any, usual: Sequence[int]) -> tuple[int, ...]:
    """The hidden states that are read, if the target has them: 0 the embeddings, e the output of layer e - 1.

    `inputs`: numbers of layers whose input is read, which is the entry of that number; a user's come first. `outputs`:
    of layers whose output is read; usual: the entries where neither is said.
    """
    entries = [int(number) for number in of.config.get(OVERRIDE) or inputs or ()]
    entries = entries or [int(number) + 1 for number in outputs or ()] or [*usual]
    if len(entries) != states:
        raise CheckpointError(
            f"{of.where} names {len(entries)} of the target's hidden states, its projection takes {states}.",
            hint=f'Correct its config.json: "{OVERRIDE}" lists them, 0 the embeddings, e the output of layer e - 1.',
        )
    layers = int(of.target["num_hidden_layers"])
    if wrong := [entry for entry in entries if not 0 <= entry <= layers]:
        raise CheckpointError(
            f"{of.where} reads hidden state {wrong[0]} of the target, {of.target_id} has {layers} layers.", hint=ANOTHER
        )
    return tuple(entries)


def rope_of(config: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    """Rotary parameters of a config.json in transformers' present or former spelling."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kinds := [name for name, value in given.items() if isinstance(value, Mapping)]:
        raise ValueError(f"its rotary parameters differ by kind of layer ({kinds[0]}), which is not computed")
    parameters = {name: value for name, value in given.items() if name != "type"}
    parameters.setdefault("rope_type", given.get("type", "default"))
    parameters.setdefault("rope_theta", config.get("rope_theta") or default_theta)
    return parameters


# Beginnings of the names of what the server runs; the device's half begins with what it projects states to.
PROJECTION_TENSORS = ("fc.", "fc_norm.", "input_norm.", "hidden_norm.")
PROJECTION = "fc.weight"
OUT_NORM = "hidden_norm.weight"


def in_norms(config: DrafterConfig) -> list[str]:
    """The norms before the projection, each of an equal part of the states side by side."""
    if config.feature_norm == JOINT:
        return ["input_norm.weight"]
    if config.feature_norm == EACH:
        return [f"fc_norm.{index}.weight" for index in range(len(config.state_entries))]
    return []


class KindOfStates(Kind):
    """A kind whose memory rows are projected from some of the target's hidden states."""

    reads_states = True
    takes = frozenset({"qkv_bias", "state_entries", "target_hidden_size", "own_heads", "own_head_dim", "head_norms"})

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {f"{self.name} reads the states of layers (state_entries)": bool(config.state_entries)}

    def server_tensors(self, config: DrafterConfig) -> tuple[str, ...]:
        return PROJECTION_TENSORS

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        arithmetic = Arithmetic.of(weights, (config.state_width, config.hidden_size))
        before = [own.array(name) for name in in_norms(config)]
        projection = arithmetic.linear([own.array(PROJECTION)])
        after = own.array(OUT_NORM) if OUT_NORM in own.names() else None

        def normed(rows: Rows, weight: Rows) -> Rows:
            return arithmetic.norm(np.ascontiguousarray(rows), weight, config.rms_norm_eps)

        def project(states: Rows) -> Rows:
            if before:
                parts = np.split(states, len(before), axis=-1)
                states = np.concatenate([normed(*pair) for pair in zip(parts, before, strict=True)], axis=-1)
            rows = projection(states)
            return rows if after is None else normed(rows, after)

        return project

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        import torch
        from torch.nn import functional as F

        projection = tensors[PROJECTION].to(device, dtype)
        before = [tensors[name].to(device) for name in in_norms(config)]
        after = tensors[OUT_NORM].to(device) if OUT_NORM in tensors else None

        def normed(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return F.rms_norm(rows.float(), weight.shape, weight, config.rms_norm_eps).to(dtype)

        def project(states: torch.Tensor) -> torch.Tensor:
            if before:
                parts = states.chunk(len(before), dim=-1)
                states = torch.cat([normed(*pair) for pair in zip(parts, before, strict=True)], dim=-1)
            rows = F.linear(states, projection)
            return rows if after is None else normed(rows, after)

        return project
