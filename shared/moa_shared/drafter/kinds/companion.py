"""A companion: a whole small model beside the target, with keys and values of the text that it has read.

Needs nothing from the server but the text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from moa_kernels import F16

from moa_shared.drafter.kinds.state import Placement, TextState, batches, run_of_text
from moa_shared.drafter.kinds.weights import Rows
from moa_shared.models.network.network import Network
from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling

LIKELIEST = Sampling(0.0)


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A committed token, and the model's own choice in its place, with its chance."""

    position: int
    chance: float
    is_chosen: bool


class CompanionState(TextState):
    """One conversation of one small model; has the interface of `DraftState`.

    `columns`: of its logits that are tokens of the target; what follows is padding. `kv`: of `moa_kernels.KV_FORMATS`.
    """

    memory_rows = 0

    def __init__(self, network: Network, columns: int, *, kv: str = F16) -> None:
        super().__init__(None, network.new_cache(kv=kv))
        self._network = network
        self.columns = min(columns, network.vocab_size)

    @property
    def unread(self) -> int:
        """Committed tokens that the next draft must read first, besides the newest."""
        return max(0, len(self.tokens) - 1 - self._read)

    def read(self, most: int, every: int = 0, sampling: Sampling = LIKELIEST) -> list[ReadToken]:
        """Reads up to `most` of the unread tokens ahead of the next draft, and says what it would have said there.

        `every`: of so many tokens one is looked at for that; 0: none is. `sampling`: by which the target has chosen.
        """
        if not self.unread:  # a draft may be under way
            return []
        return self._fill(self._read, min(self._read + most, len(self.tokens) - 1), every, sampling)

    def catch_up(self, most: int) -> bool:
        self.read(most)
        return not self.unread

    def begin(self) -> Rows:
        self._begin()
        last = len(self.tokens) - 1
        self._fill(min(self._read, last), last)
        self._cache.crop(last)
        logits = self._logits_after(self.tokens[last:], run_of_text(range(last, last + 1)))
        self._read = last + 1
        self._drafting = True
        return logits

    def _fill(self, start: int, stop: int, every: int = 0, sampling: Sampling = LIKELIEST) -> list[ReadToken]:
        asked = []
        for positions in batches(start, stop):
            hidden = self._run(self._text(positions), run_of_text(positions))
            self._read = positions.stop
            if every:
                asked += self._choices(positions[::every], self._logits(hidden[::every]), sampling)
        return asked

    def _choices(self, places: range, logits: Rows, sampling: Sampling) -> list[ReadToken]:
        """What the model would have chosen after these committed tokens, as a draft would have had it."""
        before = None
        if sampling.reads_text:
            first = places.start + 1
            before = TextBefore(self.tokens[:first], [self.tokens[first : place + 1] for place in places])
        positions = [place + 1 for place in places]
        best, tokens = draft_candidates(logits, positions, sampling, 1, before=before)
        return [
            ReadToken(position, math.exp(min(0.0, score)), self.tokens[position] == token)
            for position, [score], [token] in zip(positions, best.tolist(), tokens.tolist(), strict=True)
        ]

    def _run(self, tokens: Sequence[int], place: Placement) -> Rows:
        last = self._network.vocab_size - 1  # the target may have more rows of padding, which no text contains
        segment = place(self._cache)
        hidden, _ = self._network.hidden([min(token, last) for token in tokens], [segment])
        self._cache.length += segment.rows
        return hidden

    def _logits_after(self, tokens: Sequence[int], place: Placement) -> Rows:
        return self._logits(self._run(tokens, place))

    def _logits(self, hidden: Rows) -> Rows:
        network = self._network
        return np.ascontiguousarray(network.logits(network.normed(hidden))[:, : self.columns])
