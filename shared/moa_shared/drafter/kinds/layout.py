"""What the kinds share: a layer's shapes, and how a published checkpoint becomes one of ours. Pure.

Invariant: what fits no drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moa_kernels import StackShape
from moa_kernels.transformer.layer import SILU

from moa_shared.drafter.kinds.config import Shapes
from moa_shared.errors import CheckpointError
from moa_shared.models.network.layers import stack_shape

OWN_EMBEDDINGS, OWN_HEAD = "embed_tokens.weight", "lm_head.weight"
OVERRIDE = "moa_state_entries"  # a key for config.json, by which a user corrects numbers of layers
IGNORED = ("rotary_emb.inv_freq",)  # ends of names: of older versions of transformers, made from the configuration
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


def has_windows(sizes: Mapping[str, Any]) -> bool:
    """Whether layers see a window of the text only, which is computed for no drafter."""
    return bool(sizes.get("use_sliding_window")) or "sliding_attention" in (sizes.get("layer_types") or ())


def check_same(theirs: Mapping[str, Any], target: Mapping[str, Any], layout: str, where: str, target_id: str) -> None:
    """Raises CheckpointError where a checkpoint is for a target of other sizes.

    Args:
        theirs: by key of the target's configuration; None where the checkpoint does not say.
    """
    words = {"hidden_size": "hidden size", "vocab_size": "vocabulary size"}
    words |= {"num_attention_heads": "number of attention heads", "num_hidden_layers": "number of layers"}
    for key, size in theirs.items():
        if size is not None and size != target[key]:
            raise CheckpointError(
                f"The {layout} checkpoint {where} is for a target whose {words[key]} is {size}, "
                f"{target_id} has {target[key]}.",
                hint=ANOTHER,
            )


def kept_names(shapes: Shapes) -> list[str]:
    """The published tensors that are kept: not embeddings, which are frozen, nor what older transformers stored."""
    return [name for name in shapes if name != OWN_EMBEDDINGS and not name.endswith(IGNORED)]


def check_sizes(
    shapes: Shapes,
    projection: str,
    published: Mapping[str, Any],
    target: Mapping[str, Any],
    layout: str,
    target_id: str,
    where: str,
) -> None:
    """Raises CheckpointError where the configuration is another target's, or asks for what is not computed.

    Args:
        projection: the tensor whose outputs are as many as the target's hidden size.
    """
    table, rows = shapes.get(OWN_EMBEDDINGS), shapes.get(projection)
    check_activation(published, where)
    theirs = {
        "hidden_size": rows[0] if rows else published.get("hidden_size"),
        "vocab_size": table[0] if table else published.get("vocab_size"),
        "num_attention_heads": published.get("num_attention_heads"),
    }
    check_same(theirs, target, layout, where, target_id)


def check_activation(published: Mapping[str, Any], where: str) -> None:
    """Raises CheckpointError for an activation that is not computed."""
    activation = published.get("hidden_act", SILU)
    if activation != SILU:
        raise CheckpointError(f"{where} has the activation {activation}, moa computes {SILU}.", hint=ANOTHER)


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


def unused_sizes(stack: StackShape) -> dict[str, Any]:
    """The sizes of a configuration that mean nothing to what has neither memory nor its encoder."""
    heads = stack.kv_heads
    return {"ca_kv_heads": heads, "ca_mlp": 1, "lsa_heads": heads, "lsa_kv_heads": heads, "lsa_mlp": 1}


def check_entries(entries: Sequence[int], states: int, layers: int, target_id: str, where: str) -> None:
    """Raises CheckpointError for hidden states that the target does not have, or another number than are projected.

    Args:
        entries: that are read: 0 the embeddings, e the output of layer e - 1.
        states: how many the projection takes.
        layers: of the target.
    """
    if len(entries) != states:
        raise CheckpointError(
            f"{where} names {len(entries)} of the target's hidden states, its projection takes {states}.",
            hint=f'Correct its config.json: "{OVERRIDE}" lists them, 0 the embeddings, e the output of layer e - 1.',
        )
    wrong = [entry for entry in entries if not 0 <= entry <= layers]
    if wrong:
        raise CheckpointError(
            f"{where} reads hidden state {wrong[0]} of the target, {target_id} has {layers} layers.", hint=ANOTHER
        )


def rope_of(config: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    """Rotary parameters of a config.json in transformers' present or former spelling."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if kinds := [name for name, value in given.items() if isinstance(value, Mapping)]:
        raise ValueError(f"its rotary parameters differ by kind of layer ({kinds[0]}), which is not computed")
    parameters = {name: value for name, value in given.items() if name != "type"}
    parameters.setdefault("rope_type", given.get("type", "default"))
    parameters.setdefault("rope_theta", config.get("rope_theta") or default_theta)
    return parameters
