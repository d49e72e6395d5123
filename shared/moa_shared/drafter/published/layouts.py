"""Which published layout a checkpoint has, and what it becomes in ours: configuration and names. Pure.

EAGLE-1 and EAGLE-2 are the same ten tensors: the second is another way of drafting with the first one's weights.
Sizes that configurations do not name, or name differently before and after their authors' conversion, are taken from
the tensors. Invariant: what fits no drafter of the target is refused by the tensor's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moa_kernels.transformer.layer import SILU

from moa_shared.drafter.checkpoint.config import EAGLE2, DrafterConfig
from moa_shared.drafter.checkpoint.shapes import FC, Shapes, expected_shapes
from moa_shared.errors import CheckpointError
from moa_shared.models.network.layers import stack_shape

EMBEDDINGS = "embed_tokens.weight"
_EAGLE_THETA, _EAGLE_EPS = 10_000.0, 1e-6  # of EAGLE's code, where the configuration names none
_IGNORED = ("rotary_emb.inv_freq",)  # ends of names: of older versions of transformers, made from the configuration
_ANOTHER = "Give a drafter that was trained for this target, or --drafter none."
_KNOWN = "moa takes its own checkpoints, EAGLE-1 and EAGLE-2, and Mixture of Attentions in its authors' layout."


class Layout(Enum):
    """A published layout; the value is its name in messages."""

    EAGLE = "EAGLE"
    MOA = "Mixture of Attentions"
    MOA_EAGLE = "EAGLE (of the authors of Mixture of Attentions)"


@dataclass(frozen=True, slots=True)
class PublishedConversion:
    """What a published checkpoint becomes.

    Args:
        config: of the drafter.
        names: of the published tensors that are kept -> ours.
    """

    config: DrafterConfig
    names: Mapping[str, str]


def recognise(names: Collection[str], where: str) -> Layout:
    """The layout of a checkpoint with tensors of these names.

    Raises:
        CheckpointError: none that can be used; it says what it is, if that is known.
    """
    if any(name.startswith("midlayer.") or name in ("d2t", "t2d") for name in names):
        raise CheckpointError(
            f"{where} is an EAGLE-3 checkpoint, whose drafter reads three layers of the target: moa does not run it.",
            hint="Give an EAGLE-2 checkpoint of the same target, or train a drafter with moa-train fit.",
        )
    if any(name.startswith(("layer_self_attention.", "cross_attention.")) for name in names):
        return Layout.MOA
    if f"{FC}.weight" in names:
        return Layout.MOA_EAGLE
    if "fc.weight" in names:
        return Layout.EAGLE
    if any(name.startswith(("model.layers.", "lm_head.")) for name in names):
        raise CheckpointError(f"{where} is a whole language model, not a drafter.", hint=_KNOWN)
    first = min(names, default=None)
    what = f"tensors such as {first}, which are of no drafter that moa knows" if first else "no tensors"
    raise CheckpointError(f"{where} holds {what}.", hint=_KNOWN)


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
    kept = {name: _renamed(name, layout) for name in shapes if name != EMBEDDINGS and not name.endswith(_IGNORED)}
    _check_sizes(layout, shapes, published, target, target_id, where)
    ours = {kept[name]: shape for name, shape in shapes.items() if name in kept}
    try:
        if layout is Layout.MOA:
            config = _moa_config(ours, published, target)
        else:
            config = _eagle_config(ours, published, target, sizes=published if layout is Layout.EAGLE else {})
    except KeyError as error:
        raise CheckpointError(
            f"{where} lacks the tensor {_published(str(error.args[0]), layout)}.", hint=_ANOTHER
        ) from None
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"The config.json of {where} cannot be used: {error}.") from None
    theirs = {name: published_name for published_name, name in kept.items()}
    expected = expected_shapes(config)
    for name, shape in expected.items():
        published_name = theirs.get(name)
        if published_name is None:
            raise CheckpointError(f"{where} lacks the tensor {_published(name, layout)}.", hint=_ANOTHER)
        if ours[name] != shape:
            raise CheckpointError(
                f"In {where} {published_name} has the shape {list(ours[name])}, "
                f"a drafter for {target_id} has {list(shape)}.",
                hint=_ANOTHER,
            )
    extra = sorted(kept[name] for name in kept if kept[name] not in expected)
    if extra:
        raise CheckpointError(f"{where} holds {theirs[extra[0]]}, which no {layout.value} drafter has.", hint=_KNOWN)
    return PublishedConversion(config, kept)


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
    theirs = {
        "hidden size": rows[0] if rows else published.get("hidden_size"),
        "vocabulary size": table[0] if table else published.get("vocab_size"),
        "number of attention heads": published.get("num_attention_heads"),
    }
    ours = {
        "hidden size": target["hidden_size"],
        "vocabulary size": target["vocab_size"],
        "number of attention heads": target["num_attention_heads"],
    }
    if published.get("disable_LSA"):
        raise CheckpointError(
            f"{where} was trained without layer self-attention (disable_LSA): moa does not serve it.",
            hint="Give a checkpoint with it, or train a drafter with moa-train fit.",
        )
    activation = published.get("hidden_act", SILU)
    if activation != SILU:
        raise CheckpointError(f"{where} has the activation {activation}, moa computes {SILU}.", hint=_ANOTHER)
    for what, size in theirs.items():
        if size is not None and size != ours[what]:
            raise CheckpointError(
                f"The {layout.value} checkpoint {where} is for a target whose {what} is {size}, "
                f"{target_id} has {ours[what]}.",
                hint=_ANOTHER,
            )


def _eagle_config(
    shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any], sizes: Mapping[str, Any]
) -> DrafterConfig:
    """`sizes` may name the layer's; what it does not is taken from the tensors."""
    stack = stack_shape(target)
    keys, up = shapes["spec_model.self_attn.k_proj.weight"], shapes["spec_model.mlp.up_proj.weight"]
    return DrafterConfig(
        **_target_sizes(target),
        sa_kv_heads=sizes.get("num_key_value_heads") or keys[0] // stack.head_dim,
        sa_mlp=sizes.get("intermediate_size") or up[0],
        ca_kv_heads=stack.kv_heads,  # this and what follows is not used
        ca_mlp=1,
        lsa_heads=stack.kv_heads,
        lsa_kv_heads=stack.kv_heads,
        lsa_mlp=1,
        rms_norm_eps=float(published.get("rms_norm_eps", _EAGLE_EPS)),
        rope_parameters=_rope(published, _EAGLE_THETA),
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

    rope = _rope(published, _rope(target, _EAGLE_THETA)["rope_theta"])
    return DrafterConfig(
        **_target_sizes(target),
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


def _target_sizes(target: Mapping[str, Any]) -> dict[str, Any]:
    stack = stack_shape(target)
    return {
        "vocab_size": int(target["vocab_size"]),
        "hidden_size": stack.hidden,
        "target_layers": int(target["num_hidden_layers"]),
        "target_heads": stack.heads,
        "target_kv_heads": stack.kv_heads,
        "target_head_dim": stack.head_dim,
    }


def _rope(config: Mapping[str, Any], default_theta: float) -> dict[str, Any]:
    """Rotary parameters of a config.json in transformers' present or former spelling."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    parameters = {name: value for name, value in given.items() if name != "type"}
    parameters.setdefault("rope_type", given.get("type", "default"))
    parameters.setdefault("rope_theta", config.get("rope_theta") or default_theta)
    return parameters
