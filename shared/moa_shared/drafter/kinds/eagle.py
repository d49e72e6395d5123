"""Drafters whose rows each belong to a token: an independent one, EAGLE-2 and EAGLE-3 (arXiv 2503.01840).

EAGLE's row takes the feature of the token before, so its first row is that of the second token. Features that have not
come are the drafter's own predictions at the end of the text, and zeros before the newest that came. EAGLE-3's first
layer reads the token's embedding beside that feature, which alone enters the residual; published in the layouts of
SpecForge and EAGLE (`midlayer`), speculators and DeepSpec (`layers`); embeddings that their authors froze are the
target's. Invariant: rows of an abandoned draft are in no cache; rows made without their features are made again when
these have come.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from moa_kernels import Layer, Linear, Segment

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.config import EACH, JOINT, DeviceHalf, DrafterConfig, Kind, Published, Shapes
from moa_shared.drafter.kinds.layout import KindOfStates, OwnLayers
from moa_shared.drafter.kinds.state import BaseState, Placement, batches, draft_rows, run_of_text
from moa_shared.drafter.kinds.weights import DRAFT_IDS, Rows, check_tables, read_head
from moa_shared.errors import ProtocolError
from moa_shared.models.network.plan import plan_of
from moa_shared.models.storage.tensors import EMBEDDINGS

FC = "spec_model_fc"  # the authors' name of EAGLE's projection


class RowDecoder(OwnLayers):
    def __init__(self, half: DeviceHalf) -> None:
        super().__init__(half)
        config, own, self._target = half.config, half.own, half.target
        check_tables(self._target, config.vocab_size, config.hidden_size)
        self._fc: Linear | None = None
        if f"{FC}.weight" in own.names():
            bias = own.array(f"{FC}.bias") if config.fc_bias else None
            self._fc = self.arithmetic.linear([own.array(f"{FC}.weight")], bias)
        self.reads_features = self._fc is not None  # whether a row takes the target's feature of the token before
        self.width = config.hidden_size  # of what a row leaves
        self._norm = own.array("output_norm.weight") if config.output_norm else None
        self._head = read_head(self._target, self.draft_ids, self.arithmetic)

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        """What leaves the last layer for new rows, [rows, hidden size]; features [rows, hidden size] where read."""
        rows = self._target.rows(EMBEDDINGS, tokens)
        if self._fc is not None and features is not None:
            rows = self._fc(np.concatenate((rows, features), axis=-1))
        return self.stack.run(rows, [segment])[0]

    def features(self, out: Rows) -> Rows:
        """What the next row takes in place of the target's feature, from the last layer's rows."""
        return self.normed(out, self._norm)

    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (of `features`) to [rows, draft vocab]."""
        return self._head(features)


class BaselineState(BaseState):
    def __init__(self, decoder: RowDecoder) -> None:
        super().__init__(decoder.draft_ids)
        self.decoder = decoder
        self._offset = 1 if decoder.reads_features else 0  # row r belongs to token r + offset
        self._cache = decoder.new_cache()
        self._features: dict[int, Rows] = {}
        self._outputs: list[Rows] = []  # of the committed tokens' rows, [hidden size] each
        self._true = 0  # rows before this one were made from features that came
        self._predicted: set[int] = set()  # rows made from the drafter's own output, at the end of the text
        self._node_outputs: list[Rows] = []

    def crop(self, length: int) -> None:
        self._features = {position: row for position, row in self._features.items() if position < length}
        super().crop(length)
        self._keep_rows(max(0, length - self._offset))

    def append_memory(self, start: int, rows: Rows) -> None:
        if not self.decoder.reads_features:
            return
        if rows.shape[-1] != self.decoder.config.memory_width:
            raise ProtocolError(f"memory rows of {self.decoder.config.memory_width} numbers", f"{rows.shape[-1]}")
        for position, row in enumerate(rows, start):
            self._features.setdefault(position, row)

    def catch_up(self, most: int) -> bool:
        return self._drafting or self._fill(most)

    def begin(self) -> Rows:
        self._begin()
        self._fill(len(self.tokens))
        for row in range(len(self._outputs), len(self.tokens) - self._offset):
            self._read(range(row, row + 1))
        self._drafting = True
        return self.decoder.logits(self._newest()[None])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        logits = []
        while tokens:  # a node takes its parent's output: those whose parents are among the new ones come after them
            known = len(self._nodes)
            now = next((place for place, parent in enumerate(parents) if parent >= known), len(tokens))
            newest = self._newest()
            self._add(tokens[:now], parents[:now])
            above = np.stack([newest if parent < 0 else self._node_outputs[parent] for parent in parents[:now]])
            out = self._run(tokens[:now], above, draft_rows(self._nodes, known, len(self._outputs) - 1))
            self._node_outputs += list(out)
            logits.append(self._logits(out, known))
            tokens, parents = tokens[now:], parents[now:]
        return np.concatenate(logits)

    def _newest(self) -> Rows:
        return self._outputs[-1] if self._outputs else np.zeros(self.decoder.width, np.float32)

    def _logits(self, out: Rows, known: int) -> Rows:
        """Of the nodes from `known` on, whose rows these are."""
        return self.decoder.logits(out)

    def _fill(self, most: int) -> bool:
        """Computes up to `most` rows, of those before which features have come anew too; whether there are no more.

        Those after the newest feature are none of them: each takes the output of the one before.
        """
        rows = max(0, len(self.tokens) - self._offset)
        true, known = rows, rows
        if self.decoder.reads_features:
            true = self._true
            while true < rows and true in self._features:
                true += 1
            corrected = [row for row in self._predicted if row in self._features]
            self._keep_rows(min([len(self._outputs), *corrected, *([self._true] if true > self._true else [])]))
            known = min(rows, max(self._features, default=rows - 1) + 1)
        stop = min(known, len(self._outputs) + most)
        for positions in batches(len(self._outputs), stop):
            self._read(positions)
        self._true = min(true, len(self._outputs))
        return stop == known

    def _read(self, positions: range) -> None:
        features = None
        if self.decoder.reads_features:
            tail = self._newest() if len(positions) == 1 else np.zeros_like(self._newest())
            if len(positions) == 1 and positions.start not in self._features:
                self._predicted.add(positions.start)
            tail = tail[: self.decoder.config.memory_width]
            features = np.stack([self._features.get(row, tail) for row in positions])
        tokens = self.tokens[positions.start + self._offset : positions.stop + self._offset]
        self._outputs += list(self._run(tokens, features, run_of_text(positions)))

    def _run(self, tokens: Sequence[int], features: Rows | None, place: Placement) -> Rows:
        segment = place(self._cache)
        out = self.decoder.run(tokens, features, segment)
        self._cache.length += segment.rows
        return self.decoder.features(out)

    def _keep_rows(self, rows: int) -> None:
        del self._outputs[rows:]
        self._true = min(self._true, rows)
        self._predicted = {row for row in self._predicted if row < rows}
        self._crop_cache(len(self._outputs))

    def _drop_draft(self) -> None:
        super()._drop_draft()
        self._node_outputs.clear()
        self._crop_cache(len(self._outputs))

    def _crop_cache(self, rows: int) -> None:
        self._cache.crop(rows)


class _Independent(Kind):
    name = "independent"
    label = "independent"
    about = "An independent drafter, which reads nothing of the target"
    objective = "positions"
    has_many_layers = True
    decoder, state = RowDecoder, BaselineState

    def shapes(self, config: DrafterConfig) -> Shapes:
        shapes = layout.own_layer_shapes(config)
        if not config.input_norm:
            for name in self.layers(config):
                del shapes[f"{name}.input_layernorm.weight"]
        return shapes

    def memory_width(self, config: DrafterConfig) -> int:
        return 0


INDEPENDENT = _Independent()
_LAYER = "spec_model"


class _Eagle2(_Independent):
    name = "eagle2"
    label = "EAGLE-2"
    about = "An EAGLE-2 drafter (arXiv 2406.16858)"
    has_many_layers = False
    variants: ClassVar = {"eagle2": "EAGLE-2"}
    renamed: ClassVar = {
        "fc.": f"{FC}.",
        "layers.0.": f"{_LAYER}.",
    }
    takes = frozenset({"input_norm", "fc_bias", "qkv_bias"})

    def fits(self, names: Collection[str]) -> bool:
        return f"{FC}.weight" in names or "fc.weight" in names

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        heads, stack = of.config.get("num_attention_heads"), plan_of(of.target).shape
        layout.check_form(of, self.label, shapes, shapes[f"{FC}.weight"][0], num_attention_heads=heads)
        config = DrafterConfig(
            **layout.own_sizes(of, shapes, stack.heads, stack.head_dim, 1e-6, _LAYER),  # of EAGLE's code
            kind=self.name,
            input_norm=f"{_LAYER}.input_layernorm.weight" in shapes,
            fc_bias=f"{FC}.bias" in shapes,
            qkv_bias=f"{_LAYER}.self_attn.q_proj.bias" in shapes,
        )
        return config, (layout.OWN_EMBEDDINGS,)

    def layers(self, config: DrafterConfig) -> list[str]:
        return [_LAYER]

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden = config.hidden_size
        shapes = super().shapes(config) | {f"{FC}.weight": (hidden, 2 * hidden)}
        return shapes | {f"{FC}.bias": (hidden,)} if config.fc_bias else shapes

    def memory_width(self, config: DrafterConfig) -> int:
        return config.hidden_size

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return True


EAGLE2 = _Eagle2()


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
        self.reads_features, self.width = True, config.hidden_size
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
        stack, said, hidden = plan_of(target).shape, of.config.get, shapes["fc.weight"][0]
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
