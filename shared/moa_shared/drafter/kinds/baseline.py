"""Drafters whose rows each belong to a token: layers of the target's own kind over its frozen embeddings and head.

EAGLE's row takes the feature of the token before, so its first row is that of the second token. Features that have not
come are the drafter's own predictions at the end of the text, and zeros before the newest that came. Invariant: rows of
an abandoned draft are in no cache; rows made without their features are made again when these have come.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from moa_kernels import Cache, Layer, Linear, Rotary, Segment, StackShape

from moa_shared.drafter.kinds.config import (
    Conversion,
    DeviceHalf,
    DrafterConfig,
    Kind,
    Layout,
    NewState,
    Published,
    Shapes,
)
from moa_shared.drafter.kinds.layout import check_whole, own_layer_shapes, rope_of, target_sizes, unused_sizes
from moa_shared.drafter.layers.state import BaseState, Placement, batches, draft_rows, run_of_text
from moa_shared.drafter.layers.weights import Arithmetic, Rows, check_tables, draft_ids, read_head
from moa_shared.errors import ProtocolError
from moa_shared.models.network.network import read_layer, stack_shape
from moa_shared.models.storage.tensors import EMBEDDINGS

FC = "spec_model_fc"  # the authors' name of EAGLE's projection


class Baseline(Kind):
    """EAGLE-2 and the independent drafter; their layers take the sizes of `sa_kv_heads` and `sa_mlp`."""

    objective = "positions"

    def shapes(self, config: DrafterConfig) -> Shapes:
        shapes = own_layer_shapes(config)
        if not config.input_norm:
            for name in self.layers(config):
                del shapes[f"{name}.input_layernorm.weight"]
        return shapes

    def states(self, half: DeviceHalf) -> NewState:
        decoder = BaselineDecoder(half)
        return lambda: BaselineState(decoder)


class RowDecoder(ABC):
    """Computes the rows of a conversation, over layers of the drafter's own, and drafts."""

    reads_features = True  # whether a row takes the target's feature of the token before

    def __init__(self, half: DeviceHalf, arithmetic: Arithmetic, layers: Sequence[Layer], embedding: int = 0) -> None:
        self.config = config = half.config
        self.arithmetic = arithmetic
        sizes = config.heads, config.sa_kv_heads, config.head_dim, config.rms_norm_eps
        shape = StackShape(config.hidden_size, config.sa_mlp, *sizes, embedding=embedding)
        self.stack = arithmetic.stack(shape, layers, Rotary(config.head_dim, config.rope_parameters))
        self.draft_ids = draft_ids(half.own)

    def new_cache(self) -> Cache:
        return self.stack.new_cache(kv=self.arithmetic.kv)

    @abstractmethod
    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        """What leaves the last layer for new rows, [rows, hidden size]; features [rows, hidden size] where read."""

    @abstractmethod
    def features(self, out: Rows) -> Rows:
        """What the next row takes in place of the target's feature, from the last layer's rows."""

    @abstractmethod
    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (of `features`) to [rows, draft vocab]."""


class BaselineDecoder(RowDecoder):
    """EAGLE-2's layer, or those of an independent model."""

    def __init__(self, half: DeviceHalf) -> None:
        config, own, target = half.config, half.own, half.target
        check_tables(target, config.vocab_size, config.hidden_size)
        arithmetic = Arithmetic.of(half.weights, (config.hidden_size, config.head_dim, config.sa_mlp))
        names, has_norm = config.traits.layers(config), config.input_norm
        layers = [read_layer(own, name, arithmetic.linear, input_norm=has_norm) for name in names]
        super().__init__(half, arithmetic, layers)
        self._fc: Linear | None = None
        if f"{FC}.weight" in own.names():
            bias = own.array(f"{FC}.bias") if config.fc_bias else None
            self._fc = arithmetic.linear([own.array(f"{FC}.weight")], bias)
        self.reads_features = self._fc is not None
        self._norm = own.array("output_norm.weight") if config.output_norm else None
        self._target = target
        self._head = read_head(target, self.draft_ids, arithmetic)

    def run(self, tokens: Sequence[int], features: Rows | None, segment: Segment) -> Rows:
        rows = self._target.rows(EMBEDDINGS, tokens)
        if self._fc is not None and features is not None:
            rows = self._fc(np.concatenate((rows, features), axis=-1))
        return self.stack.run(rows, [segment])[0]

    def features(self, out: Rows) -> Rows:
        return out if self._norm is None else self.arithmetic.norm(out, self._norm, self.config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        return self._head(features)


class BaselineState(BaseState):
    """One conversation of one decoder that reads a row for each token."""

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

    @property
    def memory_rows(self) -> int:
        return len(self._features)

    # ------------------------------------------------------------ what the server said

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self._drop_draft()

    def crop(self, length: int) -> None:
        del self.tokens[length:]
        self._features = {position: row for position, row in self._features.items() if position < length}
        self._drop_draft()
        self._keep_rows(max(0, length - self._offset))

    def append_memory(self, start: int, rows: Rows) -> None:
        if not self.decoder.reads_features:
            return
        if rows.shape[-1] != self.decoder.config.memory_width:
            raise ProtocolError(f"memory rows of {self.decoder.config.memory_width} numbers", f"{rows.shape[-1]}")
        for position, row in enumerate(rows, start):
            self._features.setdefault(position, row)

    # ------------------------------------------------------------ drafting

    def catch_up(self, most: int) -> bool:
        return self._drafting or self._fill(most)

    def begin(self) -> Rows:
        self._check_begin()
        self._drop_draft()
        self._fill(len(self.tokens))
        for row in range(len(self._outputs), len(self.tokens) - self._offset):
            self._read(range(row, row + 1))
        self._drafting = True
        return self.decoder.logits(self._newest()[None])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        self._check_expand(tokens)
        logits = []
        while tokens:  # a node takes its parent's output: those whose parents are among the new ones come after them
            known = len(self._nodes)
            now = next((place for place, parent in enumerate(parents) if parent >= known), len(tokens))
            logits.append(self._expand(tokens[:now], parents[:now]))
            tokens, parents = tokens[now:], parents[now:]
        return np.concatenate(logits)

    def _expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        nodes, known = self._nodes, len(self._nodes)
        nodes.add(tokens, parents)
        newest = self._newest()
        above = np.stack([newest if parent < 0 else self._node_outputs[parent] for parent in parents])
        out = self._run(tokens, above, draft_rows(nodes, known, len(self._outputs) - 1))
        self._node_outputs += list(out)
        return self.decoder.logits(out)

    # ------------------------------------------------------------ inside

    def _newest(self) -> Rows:
        return self._outputs[-1] if self._outputs else np.zeros(self.decoder.config.hidden_size, np.float32)

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
            features = np.stack([self._features.get(row, tail) for row in positions])
        tokens = self.tokens[positions.start + self._offset : positions.stop + self._offset]
        self._outputs += list(self._run(tokens, features, run_of_text(positions)))

    def _run(self, tokens: Sequence[int], features: Rows | None, place: Placement) -> Rows:
        segment = place(self._cache)
        out = self.decoder.run(tokens, features, segment)
        self._cache.length += segment.rows
        return self.decoder.features(out)

    def _keep_rows(self, rows: int) -> None:
        """Drops the committed tokens' rows from `rows` on."""
        del self._outputs[rows:]
        self._true = min(self._true, rows)
        self._predicted = {row for row in self._predicted if row < rows}
        self._cache.crop(len(self._outputs))

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._node_outputs.clear()
        self._cache.crop(len(self._outputs))


class _Independent(Baseline):
    name = "independent"
    label = "independent"
    about = "An independent drafter, which reads nothing of the target"
    has_many_layers = True

    def memory_width(self, config: DrafterConfig) -> int:
        return 0


INDEPENDENT = _Independent()


_THETA, _EPS = 10_000.0, 1e-6  # of EAGLE's code, where the configuration names none
_LAYER = "spec_model"
_EAGLE, _OF_AUTHORS = "EAGLE", "EAGLE (of the authors of Mixture of Attentions)"


def _ours(name: str) -> str:
    if name.startswith("fc."):
        return f"{FC}.{name.removeprefix('fc.')}"
    return f"{_LAYER}.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _theirs(name: str, shapes: Shapes) -> str:
    return name.replace(f"{FC}.", "fc.").replace(f"{_LAYER}.", "layers.0.")


def _convert(layout: str, of: Published) -> Conversion:
    """Sizes that the configuration does not name, as the authors of Mixture of Attentions do, are the tensors'."""
    is_eagles = layout == _EAGLE
    kept = check_whole(of, layout, "fc.weight" if is_eagles else f"{FC}.weight")
    names = {name: _ours(name) if is_eagles else name for name in kept}
    ours = {plain: of.shapes[name] for name, plain in names.items()}
    sizes = of.config if is_eagles else {}
    keys, up = ours[f"{_LAYER}.self_attn.k_proj.weight"], ours[f"{_LAYER}.mlp.up_proj.weight"]
    config = DrafterConfig(
        **target_sizes(of.target),
        sa_kv_heads=sizes.get("num_key_value_heads") or keys[0] // stack_shape(of.target).head_dim,
        sa_mlp=sizes.get("intermediate_size") or up[0],
        **unused_sizes(of.target),
        rms_norm_eps=float(of.config.get("rms_norm_eps", _EPS)),
        rope_parameters=rope_of(of.config, _THETA),
        kind=EAGLE2.name,
        input_norm=f"{_LAYER}.input_layernorm.weight" in ours,
        fc_bias=f"{FC}.bias" in ours,
        qkv_bias=f"{_LAYER}.self_attn.q_proj.bias" in ours,
    )
    return config, names


class _Eagle2(Baseline):
    name = "eagle2"
    label = "EAGLE-2"
    about = "An EAGLE-2 drafter (arXiv 2406.16858)"
    variants: ClassVar = {"eagle2": "EAGLE-2"}
    layouts = (
        Layout(_OF_AUTHORS, lambda names: f"{FC}.weight" in names, partial(_convert, _OF_AUTHORS)),
        Layout(_EAGLE, lambda names: "fc.weight" in names, partial(_convert, _EAGLE), _theirs),
    )
    takes = frozenset({"input_norm", "fc_bias", "qkv_bias"})

    def layers(self, config: DrafterConfig) -> list[str]:
        return [_LAYER]

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden = config.hidden_size
        shapes = super().shapes(config) | {f"{FC}.weight": (hidden, 2 * hidden)}
        return shapes | {f"{FC}.bias": (hidden,)} if config.fc_bias else shapes

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return True


EAGLE2 = _Eagle2()
