"""Two drafters on one device, and a companion: a whole small model, alone or beside one that drafts for the server.

State: how much text the companion reads at a time, and what its chances and its drafts are worth, which is learnt from
what servers decide and shared by all conversations. It reads the committed text when nothing else is to be done, in
pieces that are short enough for the drafts of all conversations to come between; a draft reads the few tokens left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared.drafting.confidence import PRIOR_EVIDENCE, LearnedConfidence
from moa_shared.drafting.growing import Growth, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.programs.machine import ms_since
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from moa_client.drafting.drafters import ClientDrafter, ConversationForms, MoaDrafter, Recipe

if TYPE_CHECKING:
    from moa_shared.drafter.companion import Companion
    from moa_shared.drafter.kinds.companion import CompanionState


class PairedDrafter:
    """A drafter for each situation. `online`: drafts for a server that answers."""

    def __init__(self, online: ClientDrafter, standalone: ClientDrafter) -> None:
        self._online = online
        self._standalone = standalone

    @property
    def reads_memory(self) -> bool:
        return self._online.reads_memory or self._standalone.reads_memory

    @property
    def most_depth(self) -> int | None:
        return self._online.most_depth

    def restart(self, tokens: Sequence[int]) -> None:
        self._online.restart(tokens)
        self._standalone.restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._online.commit(tokens)
        self._standalone.commit(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self._online.remember(start, rows, state=state)
        self._standalone.remember(start, rows, state=state)

    def draft(self, sampling: Sampling) -> DraftTree:
        return self._online.draft(sampling)

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return self._online.grow(draft, sampling)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._standalone.write(draft, sampling)


# Tokens; eight take little more time than one: 11.7 and 8.4 ms with weights of 135M (AMD EPYC with AVX-512 VNNI).
LEAST_PIECE, MOST_PIECE = 8, 512
MOST_DECIDED = 16  # tokens of a verdict; more at once are a question, where the device has written nothing before
ASKED_EVERY = 4  # tokens of a piece: of the head a quarter of the work
PIECE_MS = 15.0  # of a piece: a draft for the server comes no later than by this


class CompanionDrafter(MoaDrafter):
    """Drafts and writes with a companion.

    Args:
        recipe, shape, guesser, forms: as of `MoaDrafter`; the guesser is for drafts alone.
        confidence: in its text beside the target, which goes on to learn; None: the stated chances, to begin with.
        drafts: also for a server that answers.
    """

    def __init__(
        self,
        companion: Companion,
        recipe: Recipe,
        *,
        shape: GrowthShape,
        guesser: TextGuesser | None = None,
        confidence: LearnedConfidence | None = None,
        forms: ConversationForms | None = None,
        drafts: bool = True,
    ) -> None:
        self._state: CompanionState

        def new_state() -> CompanionState:
            self._state = companion.new_state()
            return self._state

        super().__init__(new_state, recipe, reads_memory=False, shape=shape, guesser=guesser, forms=forms)
        self._agreement = companion.agreement
        self._trust = confidence or LearnedConfidence(0.0, PRIOR_EVIDENCE)
        self._decided: set[int] = set()  # positions of answers' tokens for which no choice was known
        self._has_written = False  # what is committed next is the target's word on that
        self._context_tokens = companion.context_tokens
        self._drafts = drafts
        self._piece = LEAST_PIECE

    def restart(self, tokens: Sequence[int]) -> None:
        self._decided.clear()
        self._has_written = False
        super().restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        choices, first = self._draft.growing.choices_along(tokens), len(self._state.tokens)
        super().commit(tokens)
        is_answer, self._has_written = self._has_written or len(tokens) <= MOST_DECIDED, False
        for position, (token, choice) in enumerate(zip(tokens, choices, strict=True), first) if is_answer else ():
            if choice is None:
                self._decided.add(position)
            else:
                self._learn(math.exp(choice[1]), right=choice[0] == token)

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        """As of `ReadingDrafter`."""
        state = self._state
        is_wanted = (writes or self._drafts) and self._has_room(len(state.tokens))
        if not is_wanted or state.unread < LEAST_PIECE:
            return False
        began = time.perf_counter()
        every = ASKED_EVERY if sampling.constraint is None else 0  # of a form the model knows nothing
        for asked in state.read(self._piece, every, sampling):
            if asked.position in self._decided:
                self._learn(asked.chance, right=asked.is_chosen)
        took_ms = ms_since(began)
        if took_ms > PIECE_MS:
            self._piece = max(LEAST_PIECE, self._piece // 2)
        elif 2 * took_ms < PIECE_MS:
            self._piece = min(MOST_PIECE, 2 * self._piece)
        read = len(state.tokens) - state.unread
        self._decided = {position for position in self._decided if position >= read}
        return state.unread >= LEAST_PIECE

    def draft(self, sampling: Sampling) -> DraftTree:
        return super().draft(sampling) if self._may_draft() else DraftTree((), ())

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return super().grow(draft, sampling) if self._may_draft() else Growth()

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        """As of `ClientDrafter`: the model's own choice, of any token, like the target's would be."""
        if not self._has_room(len(self._state.tokens) + len(draft)):
            return None
        self._follow_form(sampling)
        self._has_written = True
        written = self._draft.write(draft, sampling, guarded=False, copies=False)
        return written.token, self._trust.chance(written)

    def _learn(self, stated: float, *, right: bool) -> None:
        self._trust.learn(stated, right=right)
        self._agreement.add(right=right)

    def _may_draft(self) -> bool:
        return self._drafts and self._has_room(len(self._state.tokens))

    def _has_room(self, length: int) -> bool:
        """Whether a text of so many tokens is one of those that the model was made for."""
        return length < self._context_tokens


class CompanionPair(PairedDrafter):
    """A drafter that drafts for the server, and a companion that writes without one."""

    def __init__(self, online: ClientDrafter, companion: CompanionDrafter) -> None:
        super().__init__(online, companion)
        self._companion = companion

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        """As of `ReadingDrafter`: no draft waits for the companion."""
        return writes and self._companion.read_on(sampling, writes=True)
