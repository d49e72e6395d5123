"""EAGLE-3 (arXiv 2503.01840): layers over projected states of the target, or over its own.

A row takes a token and the feature of the token before. The first layer's attention reads the token's embedding beside
that feature, which alone enters the residual. Published in the layouts of SpecForge and EAGLE (`midlayer`),
speculators and DeepSpec (`layers`); embeddings that their authors froze are the target's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from moa_kernels import Layer, Segment

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.baseline import BaselineState, RowDecoder
from moa_shared.drafter.kinds.config import EACH, JOINT, DeviceHalf, DrafterConfig, Published, Shapes
from moa_shared.drafter.kinds.layout import KindOfStates, OwnLayers
from moa_shared.drafter.kinds.weights import DRAFT_IDS, Rows, check_tables, read_head
from moa_shared.models.network.network import stack_shape
from moa_shared.models.storage.tensors import EMBEDDINGS

_AUX_IDS = "eagle_aux_hidden_state_layer_ids"


class Eagle3Decoder(RowDecoder):
    """The embeddings are the target's, unless the checkpoint has its own."""

    def __init__(self, half: DeviceHalf) -> None:
        config, own, target = half.config, half.own, half.target
        if not config.own_embeddings:
            check_tables(target, config.vocab_size, config.hidden_size, (EMBEDDINGS,))
        hidden_norm = own.array(f"{config.traits.layers(config)[0]}.hidden_norm.weight")
        self._state_norm = None if config.normed_residual else hidden_norm
        self._residual_norm = hidden_norm if config.normed_residual else None
        OwnLayers.__init__(self, half, embedding=config.hidden_size)
        self.reads_features = True
        self._norm = own.array("norm.weight")
        self._embeddings = (own, layout.OWN_EMBEDDINGS) if config.own_embeddings else (target, EMBEDDINGS)
        self._head = read_head(own, None, self.arithmetic)

    def arranged(self, layers: list[Layer]) -> list[Layer]:
        first, *others = layers
        over = first.attention_norm
        return [replace(first, attention_norm=self._state_norm, attention_embedding_norm=over), *others]

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        weights, name = self._embeddings
        embeddings = weights.rows(name, tokens)
        rows = self.normed(np.zeros_like(embeddings) if features is None else features, self._residual_norm)
        of_layers = np.repeat(embeddings[:, None], len(self.stack.layers), axis=1)
        return self.stack.run(rows, [segment], embeddings=of_layers)[0]

    def features(self, out: Rows) -> Rows:
        return self.normed(out, self._norm) if self.config.normed_feedback else out

    def logits(self, features: Rows) -> Rows:
        return self._head(features if self.config.normed_feedback else self.normed(features, self._norm))


def _state_entries(of: Published, shapes: Shapes) -> tuple[int, ...]:
    """speculators' `eagle_aux_hidden_state_layer_ids` at the top are layers whose *input* is read: that entry.

    The same in `eagle_config` (SpecForge, SGLang) and DeepSpec's `target_layer_ids` are layers whose *output* is read,
    one more. Without any, they are EAGLE's usual ones.
    """
    outputs = (of.config.get("eagle_config") or {}).get(_AUX_IDS) or of.config.get("target_layer_ids")
    usual = EAGLE3.usual_entries(int(of.target["num_hidden_layers"]))
    return layout.read_entries(of, shapes, of.config.get(_AUX_IDS), outputs, usual)


class _Eagle3(KindOfStates):
    name = "eagle3"
    label = "EAGLE-3"
    about = "An EAGLE-3 drafter (arXiv 2503.01840)"
    variants: ClassVar = {"eagle3": "EAGLE-3", "peagle": "P-EAGLE"}
    not_run = frozenset({"peagle"})
    renamed: ClassVar = {"model.": "", "midlayer.": "layers.0.", "d2t": DRAFT_IDS}
    takes = KindOfStates.takes | {"own_embeddings", "feature_norm", "normed_residual", "normed_feedback"}
    objective = "steps"
    has_own_head = True

    def fits(self, names: Collection[str]) -> bool:
        return any(name.startswith("midlayer.") or name.endswith("layers.0.hidden_norm.weight") for name in names)

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        target = of.target
        table = shapes.get(layout.OWN_EMBEDDINGS)
        # speculators' and DeepSpec's embeddings are a copy of the target's, unless they were trained too
        copies = "transformer_layer_config" in of.config or "target_layer_ids" in of.config
        is_copy = copies and table == (target["vocab_size"], target["hidden_size"])
        own_embeddings = table is not None and not (is_copy and not of.config.get("embed_requires_grad"))
        stack, said, hidden = stack_shape(target), of.config.get, shapes["fc.weight"][0]
        forms = {
            "drafts that are made in one step (P-EAGLE)": any(name.endswith("mask_hidden") for name in shapes),
            f"the hidden size {hidden} and no embeddings": hidden != stack.hidden and not own_embeddings,
            "no norm before its head (norm_output)": "transformer_layer_config" not in of.config
            and said("norm_output") is False,
        }
        layout.check_form(of, self.label, shapes, said("target_hidden_size"), forms)
        heads = int(of.sizes["num_attention_heads"]) if "num_attention_heads" in of.sizes else stack.heads
        head_dim = max(1, shapes["layers.0.self_attn.q_proj.weight"][0] // heads)
        each = said("fc_norm") is True or "fc_norm.0.weight" in shapes
        joint = bool(said("norm_before_fc")) or "input_norm.weight" in shapes
        columns = shapes[layout.OWN_HEAD][0]
        config = DrafterConfig(
            **(layout.own_sizes(of, shapes, heads, head_dim, stack.eps) | {"hidden_size": hidden}),
            kind=self.name,
            draft_vocab=columns if DRAFT_IDS in shapes or columns != int(target["vocab_size"]) else 0,
            qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
            state_entries=_state_entries(of, shapes),
            target_hidden_size=0 if hidden == stack.hidden else stack.hidden,
            own_embeddings=own_embeddings,
            feature_norm=EACH if each else JOINT if joint else "",
            normed_residual=bool(said("norm_before_residual")),
            normed_feedback="transformer_layer_config" in of.config and bool(said("norm_output")),
        )
        return config, ("t2d",) if own_embeddings else ("t2d", layout.OWN_EMBEDDINGS)

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {
            **super().rules(config),
            "embeddings of another width than the target's must be own_embeddings": config.own_embeddings
            or config.state_width == config.hidden_size,
        }

    def usual_entries(self, layers: int) -> tuple[int, ...]:
        return 2, layers // 2, layers - 3

    def shapes(self, config: DrafterConfig) -> Shapes:
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

    decoder, state = Eagle3Decoder, BaselineState


EAGLE3 = _Eagle3()
