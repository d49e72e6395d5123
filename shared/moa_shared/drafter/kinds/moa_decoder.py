"""Mixture of Attentions on the device, and the state of one conversation.

Rows of a call are nodes of one draft, or a run of committed tokens, [rows, hidden size]. Self-attention covers every
committed token; cross-attention whatever memory rows have come, in whatever order (keys carry their own position);
reused layers the target's own state as far as it has come, predictions beyond. Committed tokens that follow a draft
re-root it: what was computed of it stays as it is, later nodes see the memory that has come since.
"""

from collections.abc import Sequence

import numpy as np
from moa_kernels import Cache, Rotary, Segment, Stack, StackShape

from moa_shared.drafter.kinds.config import DeviceHalf
from moa_shared.drafter.kinds.state import Indices, MemoryCache, Placement, TextState, batches, run_of_text
from moa_shared.drafter.kinds.weights import Arithmetic, Rows, TargetParts, check_tables, draft_ids
from moa_shared.errors import ProtocolError
from moa_shared.models.network.network import offset_norm, read_layer
from moa_shared.models.storage.tensors import EMBEDDINGS, FINAL_NORM

_FEW = 32  # states that are computed together with the rows after them: weights are read once instead of twice


class ReusedLayers:
    def __init__(self, stack: Stack, *, kv: str) -> None:
        self._stack = stack
        self._cache = stack.new_cache(kv=kv)
        self._states: dict[int, Rows] = {}  # by position; a conversation may be cut back to any of them
        self._first = 0
        self._verified = 0
        self._predicted = 0
        self._waiting = range(0)  # positions from `_verified` on whose states the next run computes with its own rows
        self._has_news = False  # states came since they were last looked at

    def add(self, start: int, rows: Rows) -> None:
        """Adds states of positions from `start`, [rows, hidden size]; those already held are skipped."""
        for position, row in enumerate(rows, start):
            if position not in self._states:
                self._states[position] = row
                self._has_news = True

    def crop(self, length: int) -> None:
        """Forgets the states, keys and values from position `length` on, and drops predictions."""
        self._states = {position: row for position, row in self._states.items() if position < length}
        self._cut(length)

    def drop_predictions(self) -> None:
        self._waiting = range(0)
        self._cache.crop(self._verified - self._first)

    def catch_up(self, most: int) -> int:
        """Drops what is predicted and turns states that have come into keys and values; a few wait for the next `run`.

        Returns the first position to predict, at most `most`.
        """
        self._cut(min(most, self._verified))  # cut back to a token whose state is known: it is predicted once more
        self._predicted = most
        self._verify(most)
        if self._verified > self._first or self._waiting:
            self._predicted = self._waiting.stop if self._waiting else self._verified
        return self._predicted

    def freshen(self, most: int) -> None:
        """Replaces predictions of positions before `most` whose states have come; those after stay."""
        if self._has_news and (self._first > 0 or self._verified < most):
            self._verify(most)

    def re_root(self, nodes: int, kept: Sequence[int]) -> None:
        """Keeps only these of the newest `nodes` rows, which are a draft's."""
        self._cache.keep_behind(self._cache.length - nodes, kept)

    def run(self, x: Rows, place: Placement) -> Rows:
        """The last layer's output for predicted rows, which stay in the cache until the draft is dropped."""
        segment = place(self._cache)
        if not self._waiting:
            out, _ = self._stack.run(x, [segment])
        else:
            states = self._segment_of(self._waiting)
            both, _ = self._stack.run(np.concatenate((self._stacked(self._waiting), x)), [states, segment])
            out = both[states.rows :]
            self._verified, self._waiting = self._waiting.stop, range(0)
        self._cache.length += segment.rows
        return out

    def _cut(self, length: int) -> None:
        self._verified = min(self._verified, length)
        self._first = min(self._first, self._verified)
        self.drop_predictions()

    def _verify(self, most: int) -> None:
        """Replaces predictions with the states of further positions before `most`."""
        self._has_news = False
        states, held = self._states, self._verified - self._first
        if self._first > 0 and {0, self._first - 1} <= states.keys() and all(at in states for at in range(self._first)):
            self._first = self._verified = 0
        elif not held:
            # the newest run of states, which may end before `most` when drafting on old memory
            start = max((position for position in states if position < most), default=None)
            if start is None:
                return
            while start - 1 in states:
                start -= 1
            self._first = self._verified = start
        stop = self._verified
        while stop < most and stop in states:
            stop += 1
        self._has_news = stop in states
        news = range(self._verified, stop)
        overtaken = max(0, stop - self._predicted)
        self._make_room(held + overtaken, stop - self._first)
        self._predicted += overtaken
        if len(news) <= _FEW:
            self._waiting = news
            return
        for positions in batches(news.start, news.stop):
            self._stack.fill(self._stacked(positions), [self._segment_of(positions)])
            self._verified = positions.stop

    def _make_room(self, start: int, slot: int) -> None:
        """Moves the rows from `start` on, predictions that stay, to `slot`; what is between is written afterwards."""
        kept = self._cache.length - start
        if slot >= start:
            self._cache.move_last(kept, slot - start)
        else:
            self._cache.keep_behind(slot, range(start - slot, start - slot + kept))

    def _segment_of(self, positions: range) -> Segment:
        return Segment.chain(self._cache, len(positions), positions.start, slot=positions.start - self._first)

    def _stacked(self, positions: range) -> Rows:
        return np.stack([self._states[position] for position in positions])


class DraftDecoder:
    def __init__(self, half: DeviceHalf) -> None:
        self.config = config = half.config
        own, self.target = half.own, half.target
        check_tables(self.target, config.vocab_size, config.hidden_size)
        parts = half.parts or TargetParts(self.target)
        last = range(config.target_layers - config.reused_layers, config.target_layers)
        plan, reused = parts.plan if last else None, None
        if last:
            inner = self.target.shape(f"model.layers.{last.start}.mlp.gate_proj.weight")[0] if plan is None else 0
            reused = plan.shape if plan else self._shape(config.target_kv_heads, inner)
        sizes = config.hidden_size, config.target_head_dim, config.sa_mlp, config.ca_mlp
        self.arithmetic = arithmetic = Arithmetic.of(half.weights, (*sizes, reused.inner if reused else 0))
        rotary = self._memory_rotary = Rotary(config.target_head_dim, config.rope_parameters)
        if config.unscaled_memory_rope:
            self._memory_rotary = Rotary(config.target_head_dim, config.memory_rope)
        layer = read_layer(own, "self_attention", arithmetic.linear)
        self.self_attention = arithmetic.stack(self._shape(config.sa_kv_heads, config.sa_mlp), [layer], rotary)
        self.cross_attention: Stack | None = None
        if config.ca:
            layer = read_layer(own, "cross_attention", arithmetic.linear, reads_memory=True)
            shape = self._shape(config.ca_kv_heads, config.ca_mlp, reads_memory=True)
            self.cross_attention = arithmetic.stack(shape, [layer], self._memory_rotary)
            self._bare_mlp = layer.mlp_norm, *layer.mlp
        else:
            gate, up, down = (own.array(f"cross_attention.mlp.{each}_proj.weight") for each in ("gate", "up", "down"))
            norm = own.array("cross_attention.post_attention_layernorm.weight")
            self._bare_mlp = norm, arithmetic.linear([gate, up]), arithmetic.linear([down])
        self.reused: Stack | None = None
        self._norm = own.array("output_norm.weight") if config.output_norm else None
        if reused:
            rotaries = plan.rotaries if plan else (rotary,)
            self.reused = arithmetic.stack(reused, parts.layers(last, arithmetic), rotaries)
            self._norm = self.target.array(FINAL_NORM)
            if plan:
                self._norm = offset_norm(self._norm, plan.family)
        self._logits_of = plan.logits if plan else None
        self.draft_ids = draft_ids(own)
        self._head = parts.head(self.draft_ids, arithmetic)

    def _shape(self, kv_heads: int, inner: int, *, reads_memory: bool = False) -> StackShape:
        config = self.config
        sizes = config.target_heads, kv_heads, config.target_head_dim, config.rms_norm_eps
        return StackShape(config.hidden_size, inner, *sizes, reads_memory)

    def features(self, x: Rows) -> Rows:
        return x if self._norm is None else self.arithmetic.norm(x, self._norm, self.config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        logits = self._head(features)
        return logits if self._logits_of is None else self._logits_of(logits)

    def new_cache(self, stack: Stack) -> Cache:
        return stack.new_cache(kv=self.arithmetic.kv)

    def remember(self, cache: Cache, rows: Rows, positions: Indices) -> None:
        """Appends wire rows, [rows, memory width], to those that cross-attention reads; keys are rotated here."""
        split = rows.reshape(len(rows), 2, -1, self.config.target_head_dim)
        cache.write(0, self._memory_rotary.rotate(split[:, 0], positions), split[:, 1])
        cache.length += len(rows)

    def without_memory(self, x: Rows) -> Rows:
        """Cross-attention before any memory row has come, or where there is none: only its MLP acts."""
        norm, gate_up, down = self._bare_mlp
        normed = x if norm is None else self.arithmetic.norm(x, norm, self.config.rms_norm_eps)
        gate, up = np.split(gate_up(normed), 2, axis=-1)
        inner: Rows = gate / (1 + np.exp(-np.maximum(gate, np.float32(-88)))) * up
        return x + down(inner)


class DraftState(TextState):
    def __init__(self, decoder: DraftDecoder) -> None:
        super().__init__(decoder.draft_ids, decoder.new_cache(decoder.self_attention))
        self.decoder = decoder
        self._memory: MemoryCache | None = None
        if decoder.cross_attention is not None:
            memory = decoder.new_cache(decoder.cross_attention)
            self._memory = MemoryCache(memory, decoder.config.memory_width, decoder.remember)
        kv, reused = decoder.arithmetic.kv, decoder.reused
        self._reused = ReusedLayers(reused, kv=kv) if reused is not None else None

    def crop(self, length: int) -> None:
        super().crop(length)
        if self._memory is not None:
            self._memory.crop(length)
        if self._reused is not None:
            self._reused.crop(length)

    def append_memory(self, start: int, rows: Rows) -> None:
        if self._memory is not None:
            self._memory.append(start, rows)

    def append_reused_state(self, start: int, rows: Rows) -> None:
        if self._reused is None:
            return
        if rows.shape[-1] != self.decoder.config.hidden_size:
            raise ProtocolError(f"state rows of {self.decoder.config.hidden_size} numbers", f"{rows.shape[-1]}")
        self._reused.add(start, rows)

    def begin(self) -> Rows:
        self._begin()
        last, decoder = len(self.tokens) - 1, self.decoder
        # Predictions start only here: of the tokens before, self-attention needs just the keys and values.
        first = last if self._reused is None else self._reused.catch_up(last)
        self._cache.crop(first)
        for positions in batches(self._cache.length, first):
            segment = run_of_text(positions)(self._cache)
            decoder.self_attention.fill(decoder.target.rows(EMBEDDINGS, self._text(positions)), [segment])
            self._cache.length = positions.stop
        x = np.empty((0, 0), np.float32)
        for positions in batches(first, last + 1):
            x = self._outputs(self._text(positions), run_of_text(positions))
        self._read = last + 1
        self._drafting = True
        return decoder.logits(decoder.features(x[-1:]))

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        if self._reused is not None:
            self._reused.freshen(len(self.tokens) - 1)
        return super().expand(tokens, parents)

    def _logits_after(self, tokens: Sequence[int], place: Placement) -> Rows:
        return self.decoder.logits(self.decoder.features(self._outputs(tokens, place)))

    def _outputs(self, tokens: Sequence[int], place: Placement) -> Rows:
        decoder = self.decoder
        segment = place(self._cache)
        x, _ = decoder.self_attention.run(decoder.target.rows(EMBEDDINGS, tokens), [segment])
        self._cache.length += segment.rows
        if decoder.cross_attention is not None and self._memory:
            x, _ = decoder.cross_attention.run(x, [Segment.memory(self._memory.cache, segment.positions)])
        else:
            x = decoder.without_memory(x)
        return x if self._reused is None else self._reused.run(x, place)

    def _re_root(self, nodes: int, kept: Sequence[int]) -> None:
        if self._reused is not None:
            self._reused.re_root(nodes, kept)

    def _drop_draft(self) -> None:
        super()._drop_draft()
        if self._reused is not None:
            self._reused.drop_predictions()
