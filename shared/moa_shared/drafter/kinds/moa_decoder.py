"""Mixture of Attentions on the device, and the state of one conversation.

Frozen embeddings, self-attention, cross-attention over the memory, reused target layers, head; rows of a call are nodes
of one draft, or a run of committed tokens, [rows, hidden size].
Self-attention covers every committed token; cross-attention whatever memory rows have come, in whatever order (keys
carry their own position); reused layers the target's own state as far as it has come, predictions beyond. Committed
tokens that follow a draft re-root it: what was computed of it stays as it is, later nodes see the memory that has come
since. Invariant: rows of an abandoned draft are in no cache.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Rotary, Segment, Stack, StackShape

from moa_shared.drafter.kinds.config import DeviceHalf
from moa_shared.drafter.layers.reused_layers import ReusedLayers
from moa_shared.drafter.layers.state import BaseState, MemoryCache, Placement, batches, draft_rows, run_of_text
from moa_shared.drafter.layers.weights import Arithmetic, Rows, TargetParts, check_tables, draft_ids
from moa_shared.errors import ProtocolError
from moa_shared.models.network.network import offset_norm, read_layer
from moa_shared.models.storage.tensors import EMBEDDINGS, FINAL_NORM

Numbers = npt.NDArray[np.int32]
_MLP = ("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class DraftDecoder:
    def __init__(self, half: DeviceHalf) -> None:
        config, own, target = half.config, half.own, half.target
        check_tables(target, config.vocab_size, config.hidden_size)
        self.config = config
        parts = half.parts or TargetParts(target)
        plan = parts.plan if config.reused_layers else None
        last = range(config.target_layers - config.reused_layers, config.target_layers)
        reused_inner = 0
        if last:
            reused_inner = (
                plan.shape.inner if plan else target.shape(f"model.layers.{last.start}.mlp.gate_proj.weight")[0]
            )
        sizes = (config.hidden_size, config.target_head_dim, config.sa_mlp, config.ca_mlp, reused_inner)
        self.arithmetic = arithmetic = Arithmetic.of(half.weights, sizes)
        rotary = Rotary(config.target_head_dim, config.rope_parameters)
        self._memory_rotary = rotary
        if config.unscaled_memory_rope:
            self._memory_rotary = Rotary(config.target_head_dim, config.memory_rope)
        self.self_attention = arithmetic.stack(
            self._shape(config.sa_kv_heads, config.sa_mlp),
            [read_layer(own, "self_attention", arithmetic.linear)],
            rotary,
        )
        self.cross_attention: Stack | None = None
        if config.ca:
            layer = read_layer(own, "cross_attention", arithmetic.linear, reads_memory=True)
            shape = self._shape(config.ca_kv_heads, config.ca_mlp, reads_memory=True)
            self.cross_attention = arithmetic.stack(shape, [layer], self._memory_rotary)
            self._bare_mlp = layer.mlp_norm, *layer.mlp
        else:
            norm, gate, up, down = (own.array(f"cross_attention.{each}.weight") for each in _MLP)
            self._bare_mlp = norm, arithmetic.linear([gate, up]), arithmetic.linear([down])
        self.reused: Stack | None = None
        self._norm: Rows | None = None
        if last:
            shape = plan.shape if plan else self._shape(config.target_kv_heads, reused_inner)
            rotaries = plan.rotaries if plan else (rotary,)
            self.reused = arithmetic.stack(shape, parts.layers(last, arithmetic), rotaries)
            self._norm = target.array(FINAL_NORM)
            if plan:
                self._norm = offset_norm(self._norm, plan.family)
        elif config.output_norm:
            self._norm = own.array("output_norm.weight")
        self._logits_of = plan.logits if plan else None
        self.draft_ids = draft_ids(own)
        self._target = target
        self._head = parts.head(self.draft_ids, arithmetic)

    def _shape(self, kv_heads: int, inner: int, *, reads_memory: bool = False) -> StackShape:
        config = self.config
        return StackShape(
            config.hidden_size,
            inner,
            config.target_heads,
            kv_heads,
            config.target_head_dim,
            config.rms_norm_eps,
            reads_memory,
        )

    def embed(self, tokens: Sequence[int]) -> Rows:
        return self._target.rows(EMBEDDINGS, tokens)

    def features(self, x: Rows) -> Rows:
        return x if self._norm is None else self.arithmetic.norm(x, self._norm, self.config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        logits = self._head(features)
        return logits if self._logits_of is None else self._logits_of(logits)

    def new_cache(self, stack: Stack) -> Cache:
        return stack.new_cache(kv=self.arithmetic.kv)

    def new_reused(self) -> ReusedLayers | None:
        return ReusedLayers(self.reused, kv=self.arithmetic.kv) if self.reused is not None else None

    def remember(self, cache: Cache, rows: Rows, positions: Numbers) -> None:
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


class DraftState(BaseState):
    def __init__(self, decoder: DraftDecoder) -> None:
        super().__init__(decoder.draft_ids)
        self.decoder = decoder
        self._self = decoder.new_cache(decoder.self_attention)
        self._memory: MemoryCache | None = None
        if decoder.cross_attention is not None:
            memory = decoder.new_cache(decoder.cross_attention)
            self._memory = MemoryCache(memory, decoder.config.memory_width, decoder.remember)
        self._reused = decoder.new_reused()
        self._read = 0  # committed tokens in the self-attention cache

    # ------------------------------------------------------------ what the server said

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        self.tokens.extend(tokens)
        if not self._drafting:
            return None
        nodes = len(self._nodes)
        path, kept = self._nodes.advance(tokens)
        rows = [*path, *(kept or ())]
        self._self.keep_behind(self._read, rows)  # a token's row there does not depend on what came before it
        self._read += len(path)
        if kept is None:
            self._drop_draft()
        elif self._reused is not None:
            self._reused.re_root(nodes, rows)
        return kept

    def crop(self, length: int) -> None:
        del self.tokens[length:]
        self._drop_draft()
        self._self.crop(length)
        self._read = min(self._read, length)
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

    @property
    def memory_rows(self) -> int:
        return 0 if self._memory is None else len(self._memory)

    # ------------------------------------------------------------ drafting

    def begin(self) -> Rows:
        self._check_begin()
        self._drop_draft()
        last = len(self.tokens) - 1
        # Predictions start only here: of the tokens before, self-attention needs just the keys and values.
        first = last if self._reused is None else self._reused.catch_up(last)
        self._self.crop(first)
        for positions in batches(self._self.length, first):
            segment = run_of_text(positions)(self._self)
            self.decoder.self_attention.fill(self.decoder.embed(self._text(positions)), [segment])
            self._self.length = positions.stop
        x = np.empty((0, 0), np.float32)
        for positions in batches(first, last + 1):
            x = self._outputs(self._text(positions), run_of_text(positions))
        self._read = last + 1
        self._drafting = True
        return self.decoder.logits(self.decoder.features(x[-1:]))

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        self._check_expand(tokens)
        root, known = len(self.tokens) - 1, len(self._nodes)
        if self._reused is not None:
            self._reused.freshen(root)
        self._nodes.add(tokens, parents)
        x = self._outputs(tokens, draft_rows(self._nodes, known, root))
        return self.decoder.logits(self.decoder.features(x))

    def _text(self, positions: range) -> list[int]:
        return self.tokens[positions.start : positions.stop]

    def _outputs(self, tokens: Sequence[int], place: Placement) -> Rows:
        """The last layer's output for new rows, which are appended to the caches."""
        decoder = self.decoder
        segment = place(self._self)
        x, _ = decoder.self_attention.run(decoder.embed(tokens), [segment])
        self._self.length += segment.rows
        if decoder.cross_attention is not None and self._memory:
            x, _ = decoder.cross_attention.run(x, [Segment.memory(self._memory.cache, segment.positions)])
        else:
            x = decoder.without_memory(x)
        return x if self._reused is None else self._reused.run(x, place)

    def _drop_draft(self) -> None:
        self._drafting = False
        self._nodes.clear()
        self._self.crop(self._read)
        if self._reused is not None:
            self._reused.drop_predictions()
