"""Which published layout a checkpoint has, and what it becomes in ours: configuration and names. Pure.

EAGLE-1 and EAGLE-2 are the same ten tensors: the second is another way of drafting with the first one's weights.
Sizes that configurations do not name, or name differently before and after their authors' conversion, are taken from
the tensors. Invariant: what fits no drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from moa_shared.drafter.checkpoint.config import EAGLE2, DrafterConfig
from moa_shared.drafter.checkpoint.shapes import FC, Shapes
from moa_shared.drafter.published.conversion import (
    ANOTHER,
    EMBEDDINGS,
    IGNORED,
    KNOWN,
    PublishedConversion,
    check_activation,
    check_same,
    check_tensors,
    rope_of,
    target_sizes,
    unused_sizes,
)
from moa_shared.drafter.published.dflash import convert_dflash, is_dflash
from moa_shared.drafter.published.eagle3 import convert_eagle3, is_eagle3
from moa_shared.errors import CheckpointError
from moa_shared.models.network.layers import stack_shape

_EAGLE_THETA, _EAGLE_EPS = 10_000.0, 1e-6  # of EAGLE's code, where the configuration names none


class Layout(Enum):
    """A published layout; the value is its name in messages."""

    EAGLE = "EAGLE"
    EAGLE3 = "EAGLE-3"
    DFLASH = "DFlash"
    MOA = "Mixture of Attentions"
    MOA_EAGLE = "EAGLE (of the authors of Mixture of Attentions)"


def recognise(names: Collection[str], where: str) -> Layout:
    """The layout of a checkpoint with tensors of these names.

    Raises:
        CheckpointError: none that can be used; it says what it is, if that is known.
    """
    if is_eagle3(names):
        return Layout.EAGLE3
    if is_dflash(names):
        return Layout.DFLASH
    if any(name.startswith(("layer_self_attention.", "cross_attention.")) for name in names):
        return Layout.MOA
    if f"{FC}.weight" in names:
        return Layout.MOA_EAGLE
    if "fc.weight" in names:
        return Layout.EAGLE
    if any(name.startswith(("model.layers.", "lm_head.")) for name in names):
        raise CheckpointError(f"{where} is a whole language model, not a drafter.", hint=KNOWN)
    first = min(names, default=None)
    what = f"tensors such as {first}, which are of no drafter that moa knows" if first else "no tensors"
    raise CheckpointError(f"{where} holds {what}.", hint=KNOWN)


def convert(
    shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any], target_id: str, where: str
) -> PublishedConversion:
    """What a checkpoint becomes for a target.

    Args:
        shapes: of its tensors, by their published names.
        published: its config.json.
        target: the target's config.json.
        target_id, where: names of target and checkpoint in messages.

    Raises:
        CheckpointError: another layout, or one for another target; it names the tensor or the size.
    """
    layout = recognise(shapes, where)
    try:
        if layout is Layout.EAGLE3:
            return convert_eagle3(shapes, published, target, target_id, where)
        if layout is Layout.DFLASH:
            return convert_dflash(shapes, published, target, target_id, where)
        kept = {name: _renamed(name, layout) for name in shapes if name != EMBEDDINGS and not name.endswith(IGNORED)}
        _check_sizes(layout, shapes, published, target, target_id, where)
        ours = {kept[name]: shape for name, shape in shapes.items() if name in kept}
        if layout is Layout.MOA:
            config = _moa_config(ours, published, target)
        else:
            config = _eagle_config(ours, published, target, sizes=published if layout is Layout.EAGLE else {})
    except KeyError as error:
        raise CheckpointError(
            f"{where} lacks the tensor {_published(str(error.args[0]), layout)}.", hint=ANOTHER
        ) from None
    except (AttributeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CheckpointError(f"The config.json of {where} cannot be used: {error}.") from None
    conversion = PublishedConversion(config, kept)
    check_tensors(
        conversion,
        shapes,
        lambda name: _published(name, layout),
        layout=layout.value,
        where=where,
        target_id=target_id,
    )
    return conversion


def _renamed(name: str, layout: Layout) -> str:
    if layout is not Layout.EAGLE:
        return name
    if name.startswith("fc."):
        return f"{FC}.{name.removeprefix('fc.')}"
    return f"spec_model.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _published(name: str, layout: Layout) -> str:
    if layout is not Layout.EAGLE:
        return name
    return name.replace(f"{FC}.", "fc.").replace("spec_model.", "layers.0.")


def _check_sizes(
    layout: Layout,
    shapes: Shapes,
    published: Mapping[str, Any],
    target: Mapping[str, Any],
    target_id: str,
    where: str,
) -> None:
    """Raises CheckpointError where the configuration is another target's, or asks for what is not computed."""
    table = shapes.get(EMBEDDINGS)
    rows = shapes.get("fc.weight") or shapes.get(f"{FC}.weight") or shapes.get("Ekv2E.weight")
    if published.get("disable_LSA"):
        raise CheckpointError(
            f"{where} was trained without layer self-attention (disable_LSA): moa does not serve it.",
            hint="Give a checkpoint with it, or train a drafter with moa-train fit.",
        )
    check_activation(published, where)
    theirs = {
        "hidden_size": rows[0] if rows else published.get("hidden_size"),
        "vocab_size": table[0] if table else published.get("vocab_size"),
        "num_attention_heads": published.get("num_attention_heads"),
    }
    check_same(theirs, target, layout.value, where, target_id)


def _eagle_config(
    shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any], sizes: Mapping[str, Any]
) -> DrafterConfig:
    """`sizes` may name the layer's; what it does not is taken from the tensors."""
    stack = stack_shape(target)
    keys, up = shapes["spec_model.self_attn.k_proj.weight"], shapes["spec_model.mlp.up_proj.weight"]
    return DrafterConfig(
        **target_sizes(target),
        sa_kv_heads=sizes.get("num_key_value_heads") or keys[0] // stack.head_dim,
        sa_mlp=sizes.get("intermediate_size") or up[0],
        **unused_sizes(stack),
        rms_norm_eps=float(published.get("rms_norm_eps", _EAGLE_EPS)),
        rope_parameters=rope_of(published, _EAGLE_THETA),
        kind=EAGLE2,
        input_norm="spec_model.input_layernorm.weight" in shapes,
        fc_bias=f"{FC}.bias" in shapes,
        qkv_bias="spec_model.self_attn.q_proj.bias" in shapes,
    )


def _moa_config(shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any]) -> DrafterConfig:
    stack = stack_shape(target)
    head_dim, lsa_dim = stack.head_dim, max(1, 2 * stack.kv_heads * stack.head_dim // stack.heads)

    def kv_heads(part: str, dim: int) -> int:
        return shapes[f"{part}.self_attn.k_proj.weight"][0] // dim

    def inner(part: str) -> int:
        return shapes[f"{part}.mlp.up_proj.weight"][0]

    rope = rope_of(published, rope_of(target, _EAGLE_THETA)["rope_theta"])
    return DrafterConfig(
        **target_sizes(target),
        sa_kv_heads=kv_heads("self_attention", head_dim),
        sa_mlp=inner("self_attention"),
        ca_kv_heads=kv_heads("cross_attention", head_dim),
        ca_mlp=inner("cross_attention"),
        lsa_heads=stack.heads,
        lsa_kv_heads=kv_heads("layer_self_attention", lsa_dim),
        lsa_mlp=inner("layer_self_attention"),
        rms_norm_eps=float(published.get("rms_norm_eps", stack.eps)),
        rope_parameters=rope,
        unscaled_memory_rope=rope["rope_type"] != "default",
        reused_layers=int(published.get("target_layer_inference", 0)),
    )
