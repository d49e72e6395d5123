"""The state of one conversation's drafter: tokens read, memory received, and the draft under way.

Owned by the inference thread. Self-attention covers every committed token; cross-attention whatever memory rows have
come, in whatever order (keys carry their own position); reused layers the target's own state as far as it has come,
predictions beyond. Committed tokens that follow a draft re-root it: what was computed of it stays as it is, later
nodes see the memory that has come since. Invariant: rows of an abandoned draft are in no cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from moa_kernels import Segment

from moa_shared.drafter.base_state import BaseState
from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.memory_cache import MemoryCache
from moa_shared.drafter.layers.placement import Placement, batches, draft_rows, run_of_text
from moa_shared.errors import ProtocolError


class DraftState(BaseState):
    """One conversation of one `DraftDecoder`."""

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
        """Appends committed tokens. If the draft under way holds them, it continues below the last of them.

        Returns:
            former numbers of the draft nodes left, now numbered 0, 1, ...; None: the next draft must `begin`.
        """
        self.tokens.extend(tokens)
        if not self._drafting:
            return None
        nodes = len(self._nodes)
        advance = self._nodes.advance(tokens)
        rows = [*advance.path, *(advance.kept or ())]
        self._self.keep_behind(self._read, rows)  # a token's row there does not depend on what came before it
        self._read += len(advance.path)
        if advance.kept is None:
            self._drop_draft()
        elif self._reused is not None:
            self._reused.re_root(nodes, rows)
        return advance.kept

    def crop(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        self._drop_draft()
        self._self.crop(length)
        self._read = min(self._read, length)
        if self._memory is not None:
            self._memory.crop(length)
        if self._reused is not None:
            self._reused.crop(length)

    def append_memory(self, start: int, rows: Rows) -> None:
        """Adds memory rows, [rows, memory width] float32, of positions from `start`; rows already held are skipped.

        Raises:
            ProtocolError: rows of another width.
        """
        if self._memory is not None:
            self._memory.append(start, rows)

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the state that enters the first reused layer, [rows, hidden size] float32.

        Raises:
            ProtocolError: rows of another width.
        """
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
        """Starts a draft below the newest committed token: [1, draft vocab] logits of the token after it.

        Raises:
            InternalError: there is no token yet.
        """
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
        """Adds draft nodes and returns the logits after each, [nodes, draft vocab].

        Args:
            parents: node numbers (in order of addition since `begin`, or as `extend` has renumbered them), -1 for the
                newest committed token.

        Raises:
            InternalError: no draft is under way, or no nodes.
        """
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
