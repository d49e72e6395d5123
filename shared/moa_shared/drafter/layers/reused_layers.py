"""Target layer inference (TLI): the target's last N layers, run on the device (arXiv 2410.03804, N > 0).

State: keys and values of the verified positions, computed from the state that enters the first of these layers, and
after them the predicted ones: of committed tokens from `_predicted` on, then of draft nodes. Invariant: verified
positions are one run from `_first` to `_verified`; a run that starts later than 0 is computed without what comes before
it, and again when the back-fill is complete.
"""

from collections.abc import Sequence

import numpy as np
from moa_kernels import Segment, Stack

from moa_shared.drafter.layers.state import Placement, batches
from moa_shared.drafter.layers.weights import Rows

_FEW = 32  # states that are computed together with the rows after them: weights are read once instead of twice


class ReusedLayers:
    """The reused layers' keys and values for one conversation."""

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

    # ------------------------------------------------------------ inside

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
            start = self._newest_run(most)
            if start is None:
                return
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

    def _newest_run(self, most: int) -> int | None:
        """First position of the newest run of states, which may end before `most` when drafting on old memory."""
        position = max((held for held in self._states if held < most), default=None)
        while position is not None and position - 1 in self._states:
            position -= 1
        return position

    def _segment_of(self, positions: range) -> Segment:
        slot, count = positions.start - self._first, len(positions)
        steps = np.arange(count, dtype=np.int32)
        return Segment(
            self._cache,
            slot,
            steps + np.int32(positions.start),
            steps + np.int32(slot + 1),
            np.zeros(count + 1, np.int32),
            np.zeros(0, np.int32),
        )

    def _stacked(self, positions: range) -> Rows:
        return np.stack([self._states[position] for position in positions])
