"""The drafter of one session, on the server. Runs only on the inference thread.

State: a drafter's state and its draft in flight, how far its rows go, and how often its candidates held the right
token. Invariants: it reads rows only of tokens in the target's cache; nodes that the device guessed come first, and
what both guess is the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_shared.drafting import ConversationDraft, ConversationDrafter, CopyGuesser, GrowthShape
from moa_shared.drafting.estimates import AcceptanceEstimate, Smoothed
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.coupling import Sampling
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree

from moa_server.drafting.calibration import Calibration
from moa_server.drafting.growth_rule import GrowthRule

Rows = npt.NDArray[np.float32]
NewDrafter = Callable[[], ConversationDrafter]
ReadRows = Callable[[int, int], Rows]  # rows of the positions from the first to before the second

SHAPE = GrowthShape(breadth=4, nodes=64)
# What the default drafter finds likely enough to verify holds the next token two times in three
# (docs/adr/0024-drafts-on-the-server.md); four trials let a few misses, and no fewer, stop it.
RIGHT, RIGHT_TRIALS = 0.65, 4.0
# Rows of a prompt that it reads: all rows take a tenth of the prompt's time before the second token can come, and with
# these few the drafts were as good (docs/adr/0024-drafts-on-the-server.md).
PROMPT_ROWS = {Plane.MEMORY: 4, Plane.REUSED_STATE: 16}
# Rows that it waits for: encoding four memory rows takes twice as long as one, and the newest ones it hardly misses,
# since it reads the tokens themselves (1.49 times plain streaming against 1.47: docs/adr/0024-drafts-on-the-server.md).
ROWS_TOGETHER = {Plane.MEMORY: 4, Plane.REUSED_STATE: 1}
MOST_UNREAD = 64  # rows that came since it last drafted; of a longer text, a new question's, it begins again
COPY_BYTES = 1024  # a token, of what finds copies
SLOW = 0.998  # a decay that remembers about 500 verifications: of many sessions
FEW_TOKENS = 16  # whose reading is typical of a step; a prompt's is not


@dataclass(frozen=True, slots=True)
class OwnDrafter:
    """A kind of drafter that the server can run.

    Args:
        new: makes one for a conversation.
        token_bytes: that it holds of each token.
    """

    new: NewDrafter
    token_bytes: int

    def most_nbytes(self, rows: int) -> int:
        """The most bytes for so many tokens and draft nodes."""
        return rows * (self.token_bytes + COPY_BYTES)


class DrafterRecord:
    """What all sessions have shown of one kind of drafter: what its steps take, and how often it is right.

    Args:
        step_ms: until one has been measured.
    """

    def __init__(self, step_ms: float) -> None:
        self.step_ms = Smoothed(step_ms)
        self.follow_ms = Smoothed(step_ms / 4)
        self.right = AcceptanceEstimate(RIGHT, RIGHT_TRIALS, SLOW)
        self.calibration = Calibration(decay=SLOW)


@dataclass(frozen=True, slots=True)
class Guess:
    """What the drafter adds to a draft.

    Args:
        tree: the device's nodes, then its own; `own`: how many these are, `promised`: the sum of their chances.
        known: all tokens that it took for likely after the newest one; None: it has not looked.
    """

    tree: DraftTree
    own: int
    promised: float
    known: frozenset[int] | None


class SessionDrafter:
    """Guesses for one session.

    Args:
        drafter: its kind; `record`: of that kind.
        planes: rows that it reads.
    """

    def __init__(self, drafter: OwnDrafter, record: DrafterRecord, planes: Sequence[Plane]) -> None:
        self._drafter = drafter
        self._copies = CopyGuesser()
        self._draft = ConversationDraft(drafter.new, SHAPE, self._copies)
        self._read = dict.fromkeys(planes, 0)  # rows before these positions were read, or passed over
        self._record = record
        self._right = AcceptanceEstimate(record.right.mean, RIGHT_TRIALS)
        self._calibration = Calibration(record.calibration.factor)
        self._unread = 0  # tokens committed since the last step

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return self._drafter.most_nbytes(self._draft.state.next_position)

    def tell(self, base: int, tokens: Sequence[int]) -> None:
        """Sets the committed tokens from position `base` on; what was before stays."""
        if base and base == self._draft.state.next_position:
            self._draft.commit(tokens)
        else:
            common = self._draft.restart([*self._draft.state.tokens[:base], *tokens])
            self._read = {plane: min(read, common) for plane, read in self._read.items()}
        self._unread += len(tokens)

    def guess(
        self,
        arrived: DraftTree,
        covered: float,
        sampling: Sampling,
        rule: GrowthRule,
        rows: Mapping[Plane, ReadRows],
        cached: int,
    ) -> Guess:
        """Adds nodes to the draft that has arrived, as far as they pay.

        Args:
            covered: the chance that the next token is among the arrived nodes.
            rows: read the rows of a plane; `cached`: those before this position exist.
        """
        pool = arrived
        chances: list[float] = []
        record, trust = self._record, self._calibration.factor
        right, typical = self._right.high, self._unread <= FEW_TOKENS
        looked = False
        while True:
            growing = self._draft.growing
            offered = growing.offer(pool, sampling)
            pool = DraftTree(pool.tokens + offered.tokens, pool.parents + offered.parents)
            chances += (trust * chance for chance in offered.chances)
            reach = trust * growing.reach(pool, sampling) if looked else growing.reach(pool, sampling)
            if not looked:
                reach *= 1.0 - covered
            if len(chances) >= rule.most_nodes or not reach or not rule.pays(reach, right, first=not looked):
                break
            if not looked:
                follow_ms = self._follow(rows, cached)
                if typical:
                    record.follow_ms.add(follow_ms)
            began = time.perf_counter()
            self._draft.growing.expand(pool, sampling)
            if typical or looked:
                record.step_ms.add(1e3 * (time.perf_counter() - began))
            looked = True
        first = len(arrived)
        chosen = rule.choose(chances)
        own = [first + node for node in chosen]
        known = frozenset(pool.tokens[node] for node in pool.children.get(ROOT, ())) if looked else None
        return Guess(pool.pick([*range(first), *own]), len(own), sum(chances[node] for node in chosen) / trust, known)

    def learn(self, guess: Guess, taken: Sequence[int], own_accepted: int) -> None:
        """The target has chosen tokens after a guess.

        Args:
            own_accepted: how many of them only the server had guessed.
        """
        for right in (self._right, self._record.right):
            if guess.known is not None and taken:
                right.add(taken[0] in guess.known)
            else:
                right.fade()
        for calibration in (self._calibration, self._record.calibration):
            if guess.own:
                calibration.add(guess.promised, own_accepted)
            else:
                calibration.fade()

    def _follow(self, rows: Mapping[Plane, ReadRows], cached: int) -> float:
        """Reads the rows that have come; how long it took, in ms."""
        began = time.perf_counter()
        if 0 < min(self._read.values()) < cached - MOST_UNREAD:
            text = self._draft.state.tokens
            self._draft = ConversationDraft(self._drafter.new, SHAPE, self._copies)
            self._draft.restart(text)
            self._read = dict.fromkeys(self._read, 0)
        for plane, read in rows.items():
            start = self._read[plane] or max(0, cached - PROMPT_ROWS[plane])
            if cached - start >= min(cached, ROWS_TOGETHER[plane]):
                self._draft.remember(start, read(start, cached), state=plane is Plane.REUSED_STATE)
                self._read[plane] = cached
        self._unread = 0
        return 1e3 * (time.perf_counter() - began)
