"""DFlash and DSpark in the layouts of z-lab, speculators and DeepSpec. Pure.

Sizes are taken from the tensors. Embeddings and head are the target's: their authors freeze the copies that some files
hold, which are left out. DSpark's head of confidence is left out too: drafts are judged by their own chances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moa_shared.drafter.checkpoint.config import DFLASH, MOST_BLOCK_ROWS, DrafterConfig
from moa_shared.drafter.checkpoint.shapes import MARKOV_IN, MARKOV_OUT, OWN_HEAD, Shapes
from moa_shared.drafter.checkpoint.weights import DRAFT_IDS
from moa_shared.drafter.published.conversion import (
    ANOTHER,
    EMBEDDINGS,
    IGNORED,
    OVERRIDE,
    PublishedConversion,
    check_activation,
    check_entries,
    check_same,
    check_tensors,
    has_windows,
    rope_of,
    target_sizes,
    unused_sizes,
)
from moa_shared.errors import CheckpointError
from moa_shared.models.network.layers import stack_shape

NAME = "DFlash"
_OFFSETS = "d2t"
_LEFT_OUT = (EMBEDDINGS, OWN_HEAD, "t2d")
_CONFIDENCE, _MARKOV = "confidence_head.", "markov_head."
_THETA, _EPS = 10_000.0, 1e-6  # where the configuration names none, whatever the target's is


def is_dflash(names: Collection[str]) -> bool:
    """Whether tensors of these names are DFlash's, or DSpark's."""
    return {"fc.weight", "hidden_norm.weight"} <= {_plain(name) for name in names}


def convert_dflash(
    shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any], target_id: str, where: str
) -> PublishedConversion:
    """As `convert`, of a DFlash or DSpark checkpoint.

    Raises:
        CheckpointError: it is for another target, or of a form that is not computed.
        KeyError: a tensor is missing, by our name.
        AttributeError, TypeError, ValueError: the configuration cannot be read.
    """
    sizes = published.get("transformer_layer_config") or published
    own = published.get("dflash_config") or {}
    check_activation(sizes, where)
    _check_form(published, sizes, own, where)
    names = {name: _plain(name) for name in shapes}
    ours = {plain: shapes[name] for name, plain in names.items()}
    vocabulary = ours[EMBEDDINGS][0] if EMBEDDINGS in ours else sizes.get("vocab_size")
    wanted = {
        "hidden_size": ours["fc.weight"][0],
        "vocab_size": vocabulary,
        "num_hidden_layers": published.get("num_target_layers"),
    }
    check_same(wanted, target, NAME, where, target_id)
    kept = {
        name: plain
        for name, plain in names.items()
        if plain not in _LEFT_OUT and not plain.startswith(_CONFIDENCE) and not name.endswith(IGNORED)
    }
    conversion = PublishedConversion(_config(ours, published, sizes, own, target, target_id, where), kept)

    def published_name(name: str) -> str:
        if name == DRAFT_IDS:
            return _OFFSETS
        return f"{_MARKOV}{name}" if name in (MARKOV_IN, MARKOV_OUT) else name

    check_tensors(conversion, shapes, published_name, layout=NAME, where=where, target_id=target_id)
    return conversion


def _check_form(published: Mapping[str, Any], sizes: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Raises CheckpointError for what no block here is computed with."""
    head = published.get("markov_head_type") or "vanilla"
    reason = ""
    if own.get("use_swa") or has_windows(sizes):
        reason = "layers that see a window of the text only (sliding_attention)"
    elif own.get("causal") or published.get("is_causal"):
        reason = "blocks whose rows do not see those after them (causal)"
    elif head != "vanilla":
        reason = f"a head of the type {head} (markov_head_type)"
    elif published.get("embed_requires_grad"):
        reason = "embeddings of its own (embed_requires_grad)"
    if reason:
        raise CheckpointError(
            f"{where} has {reason}: moa does not compute that.", hint="Give another DFlash checkpoint, or an EAGLE-3."
        )


def _config(
    shapes: Shapes,
    published: Mapping[str, Any],
    sizes: Mapping[str, Any],
    own: Mapping[str, Any],
    target: Mapping[str, Any],
    target_id: str,
    where: str,
) -> DrafterConfig:
    stack = stack_shape(target)
    layers = sum(name.endswith(".mlp.up_proj.weight") for name in shapes)
    states, rest = divmod(shapes["fc.weight"][1], stack.hidden)
    if rest:
        raise CheckpointError(
            f"The projection of {where} takes {shapes['fc.weight'][1]} numbers a token, "
            f"{target_id} has states of {stack.hidden}.",
            hint=ANOTHER,
        )
    queries, head_norm = shapes["layers.0.self_attn.q_proj.weight"][0], shapes.get("layers.0.self_attn.q_norm.weight")
    head_dim = max(1, head_norm[0] if head_norm else queries // int(sizes.get("num_attention_heads", stack.heads)))
    heads = max(1, queries // head_dim)
    markov = shapes.get(MARKOV_IN)
    return DrafterConfig(
        **target_sizes(target),
        sa_kv_heads=shapes["layers.0.self_attn.k_proj.weight"][0] // head_dim,
        sa_mlp=shapes["layers.0.mlp.up_proj.weight"][0],
        **unused_sizes(stack),
        rms_norm_eps=float(sizes.get("rms_norm_eps", _EPS)),
        rope_parameters=rope_of(sizes, _THETA),
        kind=DFLASH,
        own_layers=layers,
        qkv_bias="layers.0.self_attn.k_proj.bias" in shapes,
        draft_vocab=shapes[DRAFT_IDS][0] if DRAFT_IDS in shapes else 0,
        state_entries=state_entries(published, own, layers, states, int(target["num_hidden_layers"]), target_id, where),
        own_heads=0 if heads == stack.heads else heads,
        own_head_dim=0 if head_dim == stack.head_dim else head_dim,
        head_norms=head_norm is not None,
        block_size=_number(published, own, "block_size", range(1, MOST_BLOCK_ROWS + 1), where),
        mask_token=_number(published, own, "mask_token_id", range(int(target["vocab_size"])), where),
        anchor_guesses=_anchor_guesses(published, own, is_spark=markov is not None),
        markov_rank=markov[1] if markov else 0,
    )


def state_entries(
    published: Mapping[str, Any],
    own: Mapping[str, Any],
    drafters: int,
    states: int,
    layers: int,
    target_id: str,
    where: str,
) -> tuple[int, ...]:
    """Which of the target's hidden states are read: 0 the embeddings, e the output of layer e - 1.

    speculators' `aux_hidden_state_layer_ids` are these numbers. `target_layer_ids`, in `dflash_config` (z-lab) or at
    the top (DeepSpec), are layers whose output is read, one less. Without any these layers are as many as the
    drafter's, spread evenly over 1 to n - 3.

    Args:
        drafters: how many layers the drafter has; `states`: how many its projection takes; `layers`: of the target.

    Raises:
        CheckpointError: as many are not named, or the target does not have them.
    """
    outputs = own.get("target_layer_ids") or published.get("target_layer_ids")
    if given := published.get(OVERRIDE) or published.get("aux_hidden_state_layer_ids"):
        entries = tuple(int(number) for number in given)
    elif outputs:
        entries = tuple(int(number) + 1 for number in outputs)
    elif drafters == 1:
        entries = (layers // 2 + 1,)
    else:
        entries = tuple(round(1 + number * (layers - 4) / (drafters - 1)) + 1 for number in range(drafters))
    check_entries(entries, states, layers, target_id, where)
    return entries


def _anchor_guesses(published: Mapping[str, Any], own: Mapping[str, Any], *, is_spark: bool) -> bool:
    """Whether row j guesses the token after position s + j, rather than the one at it: one off is wrong silently.

    DSpark and all files of DeepSpec, which name their layers at the top, do; z-lab's DFlash does not.
    """
    said = [given.get(key) for given in (published, own) for key in ("sample_from_anchor", "shift_label")]
    if any(each is not None for each in said):
        return any(said)
    named = (*(published.get("architectures") or ()), str(published.get("speculators_model_type")))
    return is_spark or "target_layer_ids" in published or any("dspark" in name.lower() for name in named)


def _number(published: Mapping[str, Any], own: Mapping[str, Any], key: str, allowed: range, where: str) -> int:
    """A number that stands at the top of the configuration, or in its `dflash_config`.

    Raises:
        CheckpointError: there is none, or it is not allowed.
    """
    given = own.get(key) if published.get(key) is None else published[key]
    if type(given) is not int or given not in allowed:
        raise CheckpointError(
            f"The {key} of {where} is {given!r}, expected a whole number from {allowed.start} to {allowed.stop - 1}.",
            hint="Fetch its config.json again, or give a drafter that was trained for this target.",
        )
    return given


def _plain(name: str) -> str:
    """Our name of a published tensor."""
    name = name.removeprefix("model.").removeprefix(_MARKOV)
    return DRAFT_IDS if name == _OFFSETS else name
