"""EAGLE-3 in the layouts of SpecForge and EAGLE (`midlayer`), speculators and DeepSpec (`layers`). Pure.

Sizes are taken from the tensors. Which of the target's states are read is said in four ways, which mean two things: see
`state_entries`. Embeddings that their authors froze are the target's, and are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from moa_shared.drafter.checkpoint.config import EACH, EAGLE3, JOINT, DrafterConfig
from moa_shared.drafter.checkpoint.shapes import OWN_EMBEDDINGS, OWN_HEAD, Shapes
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

NAME = "EAGLE-3"
_OFFSETS, _MASK = "d2t", "t2d"
_AUX_IDS = "eagle_aux_hidden_state_layer_ids"
_THETA = 10_000.0  # where the configuration names none, whatever the target's is


def is_eagle3(names: Collection[str]) -> bool:
    """Whether tensors of these names are EAGLE-3's."""
    plain = {_plain(name) for name in names}
    return "layers.0.hidden_norm.weight" in plain or any(name.startswith("midlayer.") for name in names)


def convert_eagle3(
    shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any], target_id: str, where: str
) -> PublishedConversion:
    """As `convert`, of an EAGLE-3 checkpoint.

    Raises:
        CheckpointError: it is for another target, or of a form that is not computed.
        KeyError: a tensor is missing, by our name.
        AttributeError, TypeError, ValueError: the configuration cannot be read.
    """
    sizes = published.get("transformer_layer_config") or published
    if any(name.endswith("mask_hidden") for name in shapes):
        raise CheckpointError(
            f"{where} is a P-EAGLE checkpoint, whose drafts are made in one step: moa does not run it.",
            hint="Give an EAGLE-3 checkpoint of the same target.",
        )
    check_activation(sizes, where)
    names = {name: _plain(name) for name in shapes if name != _MASK and not name.endswith(IGNORED)}
    ours = {plain: shapes[name] for name, plain in names.items()}
    vocabulary = ours[EMBEDDINGS][0] if EMBEDDINGS in ours else sizes.get("vocab_size")
    wanted = {"hidden_size": published.get("target_hidden_size"), "vocab_size": vocabulary}
    check_same(wanted, target, NAME, where, target_id)
    own_embeddings = EMBEDDINGS in ours and not _has_frozen_embeddings(ours, published, target)
    if not own_embeddings:
        names = {name: plain for name, plain in names.items() if plain != EMBEDDINGS}
    config = _config(ours, published, sizes, target, target_id, where, own_embeddings=own_embeddings)
    conversion = PublishedConversion(config, names)

    def published_name(name: str) -> str:
        if name == DRAFT_IDS:
            return _OFFSETS
        has_midlayer = any(each.startswith("midlayer.") for each in shapes)
        return f"midlayer.{name.removeprefix('layers.0.')}" if has_midlayer and name.startswith("layers.0.") else name

    check_tensors(conversion, shapes, published_name, layout=NAME, where=where, target_id=target_id)
    return conversion


def state_entries(
    published: Mapping[str, Any], states: int, layers: int, target_id: str, where: str
) -> tuple[int, ...]:
    """Which of the target's hidden states are read: 0 the embeddings, e the output of layer e - 1.

    speculators' `eagle_aux_hidden_state_layer_ids` at the top are layers whose *input* is read, which is the entry of
    that number; the same in `eagle_config` (SpecForge, SGLang) and DeepSpec's `target_layer_ids` are layers whose
    *output* is read, one more. Without any, EAGLE reads the entries 2, n // 2 and n - 3.

    Args:
        states: how many the projection takes.
        layers: of the target.

    Raises:
        CheckpointError: as many are not named, or the target does not have them.
    """
    of_outputs = (published.get("eagle_config") or {}).get(_AUX_IDS) or published.get("target_layer_ids")
    if of_inputs := published.get(OVERRIDE) or published.get(_AUX_IDS):
        entries = _numbers(of_inputs)
    elif of_outputs:
        entries = tuple(number + 1 for number in _numbers(of_outputs))
    else:
        entries = (2, layers // 2, layers - 3)
    check_entries(entries, states, layers, target_id, where)
    return entries


def _config(
    shapes: Shapes,
    published: Mapping[str, Any],
    sizes: Mapping[str, Any],
    target: Mapping[str, Any],
    target_id: str,
    where: str,
    *,
    own_embeddings: bool,
) -> DrafterConfig:
    stack = stack_shape(target)
    hidden, read = shapes["fc.weight"]
    states, rest = divmod(read, stack.hidden)
    if rest:
        raise CheckpointError(
            f"The {NAME} checkpoint {where} is for a target of another hidden size: its projection takes {read} numbers"
            f" a token, {target_id} has states of {stack.hidden}.",
            hint=ANOTHER,
        )
    if hidden != stack.hidden and not own_embeddings:
        raise CheckpointError(
            f"{where} has the hidden size {hidden} and no embeddings: those of {target_id} have {stack.hidden}.",
            hint=ANOTHER,
        )
    is_nested = sizes is not published
    if not is_nested and published.get("norm_output") is False:
        raise CheckpointError(
            f"{where} has no norm before its head (norm_output is false): moa does not compute that.",
            hint="Give another EAGLE-3 checkpoint of the same target.",
        )
    if has_windows(sizes):
        raise CheckpointError(
            f"{where} has layers that see a window of the text only (sliding_attention): moa does not compute that.",
            hint="Give another EAGLE-3 checkpoint of the same target.",
        )
    heads = int(sizes["num_attention_heads"]) if "num_attention_heads" in sizes else stack.heads
    head_dim = max(1, shapes["layers.0.self_attn.q_proj.weight"][0] // heads)
    each = published.get("fc_norm") is True or "fc_norm.0.weight" in shapes
    joint = bool(published.get("norm_before_fc")) or "input_norm.weight" in shapes
    vocabulary, columns = int(target["vocab_size"]), shapes[OWN_HEAD][0]
    return DrafterConfig(
        **(target_sizes(target) | {"hidden_size": hidden}),
        sa_kv_heads=shapes["layers.0.self_attn.k_proj.weight"][0] // head_dim,
        sa_mlp=shapes["layers.0.mlp.up_proj.weight"][0],
        **unused_sizes(stack),
        rms_norm_eps=float(sizes.get("rms_norm_eps", stack.eps)),
        rope_parameters=rope_of(sizes, _THETA),
        kind=EAGLE3,
        own_layers=sum(name.endswith(".mlp.up_proj.weight") for name in shapes),
        draft_vocab=columns if DRAFT_IDS in shapes or columns != vocabulary else 0,
        qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
        state_entries=state_entries(published, states, int(target["num_hidden_layers"]), target_id, where),
        target_hidden_size=0 if hidden == stack.hidden else stack.hidden,
        own_heads=0 if heads == stack.heads else heads,
        own_head_dim=0 if head_dim == stack.head_dim else head_dim,
        own_embeddings=own_embeddings,
        head_norms="layers.0.self_attn.q_norm.weight" in shapes,
        feature_norm=EACH if each else JOINT if joint else "",
        normed_residual=bool(published.get("norm_before_residual")),
        normed_feedback=is_nested and bool(published.get("norm_output")),
    )


def _has_frozen_embeddings(shapes: Shapes, published: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Whether its embeddings are a copy of the target's: speculators' and DeepSpec's, unless they were trained too."""
    copies = "transformer_layer_config" in published or "target_layer_ids" in published
    same = shapes[EMBEDDINGS] == (target["vocab_size"], target["hidden_size"])
    return copies and same and not published.get("embed_requires_grad")


def _plain(name: str) -> str:
    """Our name of a published tensor."""
    name = name.removeprefix("model.")
    if name == _OFFSETS:
        return DRAFT_IDS
    if name == EMBEDDINGS:
        return OWN_EMBEDDINGS
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _numbers(given: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in given)
