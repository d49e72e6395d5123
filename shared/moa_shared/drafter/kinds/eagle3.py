"""EAGLE-3 (arXiv 2503.01840): layers over projected states of the target, or over its own.

A row takes a token and the feature of the token before. The first layer's attention reads the token's embedding beside
that feature, which alone enters the residual. Published in the layouts of SpecForge and EAGLE (`midlayer`),
speculators and DeepSpec (`layers`). Sizes are taken from the tensors; embeddings that their authors froze are the
target's. Which of the target's states are read is said in four ways, which mean two things: see `_state_entries`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from moa_kernels import Segment

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.baseline import BaselineState, RowDecoder
from moa_shared.drafter.kinds.config import (
    EACH,
    JOINT,
    Conversion,
    DeviceHalf,
    DrafterConfig,
    Layout,
    NewState,
    Published,
    Shapes,
)
from moa_shared.drafter.kinds.layout import KindOfStates
from moa_shared.drafter.layers.weights import DRAFT_IDS, Arithmetic, Rows, check_tables, read_head
from moa_shared.errors import CheckpointError
from moa_shared.models.network.network import read_layer, stack_shape
from moa_shared.models.storage.tensors import EMBEDDINGS

_OFFSETS, _MASK = "d2t", "t2d"
_AUX_IDS = "eagle_aux_hidden_state_layer_ids"


class Eagle3Decoder(RowDecoder):
    """The embeddings are the target's, unless the checkpoint has its own."""

    def __init__(self, half: DeviceHalf) -> None:
        config, own, target = half.config, half.own, half.target
        if not config.own_embeddings:
            check_tables(target, config.vocab_size, config.hidden_size, (EMBEDDINGS,))
        arithmetic = Arithmetic.of(half.weights, (config.hidden_size, config.head_dim, config.sa_mlp))
        names = config.traits.layers(config)
        first, *others = (read_layer(own, name, arithmetic.linear) for name in names)
        hidden_norm = own.array(f"{names[0]}.hidden_norm.weight")
        self._residual_norm = hidden_norm if config.normed_residual else None
        over = None if config.normed_residual else hidden_norm
        first = replace(first, attention_norm=over, attention_embedding_norm=first.attention_norm)
        super().__init__(half, arithmetic, [first, *others], embedding=config.hidden_size)
        self._norm = own.array("norm.weight")
        self._embeddings = (own, layout.OWN_EMBEDDINGS) if config.own_embeddings else (target, EMBEDDINGS)
        self._head = read_head(own, None, arithmetic)

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        weights, name = self._embeddings
        embeddings = weights.rows(name, tokens)
        rows = np.zeros_like(embeddings) if features is None else features
        if self._residual_norm is not None:
            rows = self._normed(rows, self._residual_norm)
        of_layers = np.repeat(embeddings[:, None], len(self.stack.layers), axis=1)
        return self.stack.run(rows, [segment], embeddings=of_layers)[0]

    def features(self, out: Rows) -> Rows:
        return self._normed(out, self._norm) if self.config.normed_feedback else out

    def logits(self, features: Rows) -> Rows:
        return self._head(features if self.config.normed_feedback else self._normed(features, self._norm))

    def _normed(self, rows: Rows, weight: Rows) -> Rows:
        return self.arithmetic.norm(rows, weight, self.config.rms_norm_eps)


def _fits(names: Collection[str]) -> bool:
    plain = {_plain(name) for name in names}
    return "layers.0.hidden_norm.weight" in plain or any(name.startswith("midlayer.") for name in names)


def _convert(of: Published) -> Conversion:
    target = of.target
    if any(name.endswith("mask_hidden") for name in of.shapes):
        raise CheckpointError(
            f"{of.where} is a P-EAGLE checkpoint, whose drafts are made in one step: moa does not run it.",
            hint="Give an EAGLE-3 checkpoint of the same target.",
        )
    names = {name: _plain(name) for name in of.shapes if name != _MASK and not name.endswith(layout.IGNORED)}
    shapes = {plain: of.shapes[name] for name, plain in names.items()}
    table = shapes.get(layout.OWN_EMBEDDINGS)
    vocabulary = table[0] if table else of.sizes.get("vocab_size")
    layout.check_sizes(of, EAGLE3.label, {"hidden_size": of.config.get("target_hidden_size"), "vocab_size": vocabulary})
    # speculators' and DeepSpec's embeddings are a copy of the target's, unless they were trained too
    copies = "transformer_layer_config" in of.config or "target_layer_ids" in of.config
    is_copy = copies and table == (target["vocab_size"], target["hidden_size"])
    own_embeddings = table is not None and not (is_copy and not of.config.get("embed_requires_grad"))
    if not own_embeddings:
        names = {name: plain for name, plain in names.items() if plain != layout.OWN_EMBEDDINGS}
    hidden, states = _check_form(of, shapes, own_embeddings=own_embeddings)
    stack, said = stack_shape(target), of.config.get
    heads = int(of.sizes["num_attention_heads"]) if "num_attention_heads" in of.sizes else stack.heads
    head_dim = max(1, shapes["layers.0.self_attn.q_proj.weight"][0] // heads)
    each = said("fc_norm") is True or "fc_norm.0.weight" in shapes
    joint = bool(said("norm_before_fc")) or "input_norm.weight" in shapes
    columns = shapes[layout.OWN_HEAD][0]
    config = DrafterConfig(
        **(layout.own_sizes(of, shapes, heads, head_dim, stack.eps) | {"hidden_size": hidden}),
        kind=EAGLE3.name,
        draft_vocab=columns if DRAFT_IDS in shapes or columns != int(target["vocab_size"]) else 0,
        qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
        state_entries=_state_entries(of, states),
        target_hidden_size=0 if hidden == stack.hidden else stack.hidden,
        own_embeddings=own_embeddings,
        feature_norm=EACH if each else JOINT if joint else "",
        normed_residual=bool(said("norm_before_residual")),
        normed_feedback="transformer_layer_config" in of.config and bool(said("norm_output")),
    )
    return config, names


def _check_form(of: Published, shapes: Shapes, *, own_embeddings: bool) -> tuple[int, int]:
    """The drafter's width and how many states it reads, unless it is of a form that is not computed."""
    width = stack_shape(of.target).hidden
    hidden, read = shapes["fc.weight"]
    reason, hint = "", layout.ANOTHER
    if read % width:
        reason = (
            f"The EAGLE-3 checkpoint {of.where} is for a target of another hidden size: its projection takes {read} "
        )
        reason += f"numbers a token, {of.target_id} has states of {width}."
    elif hidden != width and not own_embeddings:
        reason = f"{of.where} has the hidden size {hidden} and no embeddings: those of {of.target_id} have {width}."
    elif "transformer_layer_config" not in of.config and of.config.get("norm_output") is False:
        reason = f"{of.where} has no norm before its head (norm_output is false): moa does not compute that."
        hint = "Give another EAGLE-3 checkpoint of the same target."
    elif layout.has_windows(of.sizes):
        windows = "layers that see a window of the text only (sliding_attention)"
        reason = f"{of.where} has {windows}: moa does not compute that."
        hint = "Give another EAGLE-3 checkpoint of the same target."
    if reason:
        raise CheckpointError(reason, hint=hint)
    return hidden, read // width


def _state_entries(of: Published, states: int) -> tuple[int, ...]:
    """Which of the target's hidden states are read.

    speculators' `eagle_aux_hidden_state_layer_ids` at the top are layers whose *input* is read, which is the entry of
    that number; the same in `eagle_config` (SpecForge, SGLang) and DeepSpec's `target_layer_ids` are layers whose
    *output* is read, one more. Without any, they are EAGLE's usual ones.
    """
    outputs = (of.config.get("eagle_config") or {}).get(_AUX_IDS) or of.config.get("target_layer_ids")
    usual = EAGLE3.usual_entries(int(of.target["num_hidden_layers"]))
    return layout.read_entries(of, states, inputs=of.config.get(_AUX_IDS), outputs=outputs, usual=usual)


def _plain(name: str) -> str:
    name = name.removeprefix("model.")
    if name == _OFFSETS:
        return DRAFT_IDS
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


def _theirs(name: str, shapes: Shapes) -> str:
    if name == DRAFT_IDS:
        return _OFFSETS
    has_midlayer = any(each.startswith("midlayer.") for each in shapes)
    return f"midlayer.{name.removeprefix('layers.0.')}" if has_midlayer and name.startswith("layers.0.") else name


class _Eagle3(KindOfStates):
    name = "eagle3"
    label = "EAGLE-3"
    about = "An EAGLE-3 drafter (arXiv 2503.01840)"
    variants: ClassVar = {"eagle3": "EAGLE-3", "peagle": "P-EAGLE"}
    not_run = frozenset({"peagle"})
    layouts = (Layout("EAGLE-3", _fits, _convert, _theirs),)
    takes = KindOfStates.takes | {"own_embeddings", "feature_norm", "normed_residual", "normed_feedback"}
    objective = "steps"
    has_own_head = True

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {
            **super().rules(config),
            "embeddings of another width than the target's must be own_embeddings": config.own_embeddings
            or config.state_width == config.hidden_size,
        }

    def form(self, config: DrafterConfig) -> Mapping[str, str]:
        return {"hidden states read": ", ".join(map(str, config.state_entries))}

    def usual_entries(self, layers: int) -> tuple[int, ...]:
        return 2, layers // 2, layers - 3

    def shapes(self, config: DrafterConfig) -> Shapes:
        """Its first layer's queries, keys and values read an embedding beside a state."""
        hidden, states = config.hidden_size, len(config.state_entries) * config.state_width
        shapes = layout.own_layer_shapes(config) | {"fc.weight": (hidden, states)}
        if config.feature_norm == JOINT:
            shapes["input_norm.weight"] = (states,)
        if config.feature_norm == EACH:
            shapes |= {f"fc_norm.{index}.weight": (config.state_width,) for index in range(len(config.state_entries))}
        first = self.layers(config)[0]
        for name in (f"{first}.self_attn.{part}_proj.weight" for part in "qkv"):
            shapes[name] = (shapes[name][0], 2 * hidden)
        shapes |= {f"{first}.hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        shapes[layout.OWN_HEAD] = (config.draft_vocab or config.vocab_size, hidden)
        if config.own_embeddings:
            shapes[layout.OWN_EMBEDDINGS] = (config.vocab_size, hidden)
        return shapes

    def states(self, half: DeviceHalf) -> NewState:
        decoder = Eagle3Decoder(half)
        return lambda: BaselineState(decoder)


EAGLE3 = _Eagle3()
