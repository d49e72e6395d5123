"""The state of one conversation's drafter of EAGLE's kind, or an independent one: tokens, the target's features that
have come, and caches.

Each row belongs to a token; EAGLE's row takes the feature of the token before, so its first row is that of the second
token. Features that have not come are the drafter's own predictions at the end of the text, and zeros before the newest
that came. Invariant: rows of an abandoned draft are in no cache; rows made from predictions are made again when their
features come, those made from zeros when all features up to them have come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moa_shared.drafter.base_state import BaseState
from moa_shared.drafter.baseline.decoder import BaselineDecoder
from moa_shared.drafter.eagle3.decoder import Eagle3Decoder
from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.placement import Placement, batches, draft_rows, run_of_text
from moa_shared.errors import ProtocolError


class BaselineState(BaseState):
    """One conversation of one `BaselineDecoder` or `Eagle3Decoder`; has the interface of `DraftState`."""

    def __init__(self, decoder: BaselineDecoder | Eagle3Decoder) -> None:
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
        """Appends committed tokens; the next draft must `begin`."""
        self.tokens.extend(tokens)
        self._drop_draft()

    def crop(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        self._features = {position: row for position, row in self._features.items() if position < length}
        self._drop_draft()
        self._keep_rows(max(0, length - self._offset))

    def append_memory(self, start: int, rows: Rows) -> None:
        """Adds the target's features, [rows, hidden size] float32, of positions from `start`.

        They are its last hidden states, or what EAGLE-3 projects several states to.

        Raises:
            ProtocolError: rows of another width.
        """
        if not self.decoder.reads_features:
            return
        if rows.shape[-1] != self.decoder.config.memory_width:
            raise ProtocolError(f"memory rows of {self.decoder.config.memory_width} numbers", f"{rows.shape[-1]}")
        for position, row in enumerate(rows, start):
            self._features.setdefault(position, row)

    # ------------------------------------------------------------ drafting

    def catch_up(self, most: int) -> bool:
        """As of `ConversationDrafter`; tokens after the newest feature are left to `begin`."""
        return self._drafting or self._fill(most)

    def begin(self) -> Rows:
        """Starts a draft below the newest committed token: [1, draft vocab] logits of the token after it.

        Raises:
            InternalError: there is no token yet.
        """
        self._check_begin()
        self._drop_draft()
        self._fill(len(self.tokens))
        for row in range(len(self._outputs), len(self.tokens) - self._offset):
            self._read(range(row, row + 1))
        self._drafting = True
        return self.decoder.logits(self._newest()[None])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Adds draft nodes (parents: node numbers, -1 the root); [nodes, draft vocab] logits after each.

        Raises:
            InternalError: no draft is under way, or no nodes.
        """
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
        """The newest committed token's output; zeros before the first row."""
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
        """Computes the rows of committed tokens."""
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
