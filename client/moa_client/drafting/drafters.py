"""The drafters that a client can run, with one small interface; all of them run on the inference thread.

A drafter receives committed tokens and memory, makes drafts and writes standalone text. `MoaDrafter` reads the server's
memory, `LookupDrafter` copies from the conversation, `CompanionDrafter` is a whole small model, by itself or next to
one that drafts for the server (`CompanionPair`). Drafts keep to the form of the running answer once it is compiled, on
a thread of its own: nobody waits for a form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from moa_shared.constraints.compiler import DraftForm
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.drafting.estimates import Confidence, chance_of
from moa_shared.drafting.growing import CHAIN, ConversationDraft, Growth, GrowthShape
from moa_shared.drafting.guesses import LOOKUP_LONGEST, SHORTEST_STANDALONE, TextGuesser
from moa_shared.programs.machine import ms_since
from moa_shared.sampling.settings import Constraint, Sampling
from moa_shared.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText
    from moa_shared.drafter.companion import Companion, CompanionState


BeginForm = Callable[[Constraint], "Future[ConstrainedText | None]"]  # an answer's, before its first token


class ConversationForms:
    """The form of one conversation's running answer."""

    def __init__(self, begin: BeginForm) -> None:
        self._begin = begin
        self._key: tuple[Constraint, int] | None = None  # of the running answer: its constraint and its place
        self._begun: Future[ConstrainedText | None] | None = None
        self._form: DraftForm | None = None
        self._answer: list[int] = []  # that the form has read

    def after(self, tokens: Sequence[int], sampling: Sampling) -> ConstrainedText | None:
        """The form after the conversation's tokens; None: there is none, or not yet, or they are not of it."""
        answer = list(tokens[sampling.answer_start :])
        if sampling.constraint is None or not answer:  # before its first token no server has tried the form
            self._key = self._begun = self._form = None
            return None
        key = sampling.constraint, sampling.answer_start
        if key != self._key or answer[: len(self._answer)] != self._answer:
            self._key, self._form, self._answer = key, None, []
            self._begun = self._begin(sampling.constraint)
        begun = self._begun
        if self._form is None and begun is not None and begun.done() and begun.exception() is None:
            form = begun.result()
            self._form = DraftForm(form) if form is not None else None
        if self._form is None:
            return None
        self._answer = answer
        return self._form.after(answer)


# Tokens since the newest row of a drafter without states, at which what it says alone is not worth showing: it was
# trained on rows of the text right before.
MOST_UNSEEN = 64


class ClientDrafter(Protocol):
    """What the drafting loop needs from a drafter. One with `read_on` may also begin an answer by itself."""

    @property
    def reads_memory(self) -> bool: ...  # whether it uses the server's memory
    # Levels of a draft that come with its first step, and the most that there are; None: each takes a step.
    @property
    def most_depth(self) -> int | None: ...
    def restart(self, tokens: Sequence[int]) -> None: ...
    def commit(self, tokens: Sequence[int]) -> None: ...

    # Takes in rows of memory, or of the state that enters the first reused layer.
    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None: ...

    # One step: new nodes below `draft`, which hangs below the newest committed token. Any draft may be given; what is
    # unchanged since the last call costs nothing again. Empty: until something is committed, there is nothing more to
    # guess.
    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth: ...
    # The token to write after the newest node of `draft`, and the chance that it is the target's if those of the draft
    # are; None: there is nothing to say.
    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None: ...


class MoaDrafter:
    """A Mixture of Attentions drafter, or another one trained for the target.

    One that reads memory, and has none of the newest text, knows nothing: of what it writes then only copies have a
    chance of being right.

    `new_state` makes an empty state; `guesser` merges what the text suggests into drafts. `confidence`: of standalone
    text; None: it was never measured, and the stated chances are taken for it. `forms`: None: drafts keep to none.
    `needs_rows`: states tell it nothing of the text before the newest token.
    """

    def __init__(
        self,
        new_state: Callable[[], ConversationDrafter],
        *,
        reads_memory: bool,
        shape: GrowthShape = CHAIN,
        guesser: TextGuesser | None = None,
        confidence: Confidence | None = None,
        forms: BeginForm | None = None,
        needs_rows: bool = False,
    ) -> None:
        self.reads_memory, self._needs_rows = reads_memory, needs_rows
        self._confidence = confidence
        self._forms = ConversationForms(forms) if forms is not None else None
        self._draft = ConversationDraft(new_state, shape, guesser)
        self._rows_stop = 0  # after the newest memory row that has come
        self._has_states = False

    @property
    def most_depth(self) -> int | None:
        return self._draft.state.most_depth

    def restart(self, tokens: Sequence[int]) -> None:
        known = self._draft.restart(tokens)
        self._rows_stop = min(self._rows_stop, known)
        self._has_states = self._has_states and known > 0

    def commit(self, tokens: Sequence[int]) -> None:
        self._draft.commit(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self._draft.remember(start, rows, state=state)
        if state:
            self._has_states = True
        else:
            self._rows_stop = max(self._rows_stop, start + len(rows))

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        self._follow_form(sampling)
        return self._draft.grow_on(draft, sampling)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        self._follow_form(sampling)
        is_blind = self._is_blind
        if is_blind and (guesser := self._draft.tree.guesser) is not None:
            copied = guesser.copied(_newest_path(draft), SHORTEST_STANDALONE)
            if copied is not None:
                return copied[0], math.exp(copied[1])
        written = self._draft.write(draft, sampling)
        return written.token, 0.0 if is_blind else chance_of(written, self._confidence)

    @property
    def _is_blind(self) -> bool:
        if not self.reads_memory or (self._has_states and not self._needs_rows):
            return False
        return not self._rows_stop or self._draft.state.next_position - self._rows_stop > MOST_UNSEEN

    def _follow_form(self, sampling: Sampling) -> None:
        if self._forms is not None:
            self._draft.follow(self._forms.after(self._draft.state.tokens, sampling))


class LookupDrafter:
    """Copies continuations from the conversation (prompt look-up). `length`: of what a step adds to a chain."""

    reads_memory = False
    most_depth = None

    def __init__(self, length: int) -> None:
        self._text = TextGuesser(longest=LOOKUP_LONGEST)
        self._length = length

    def restart(self, tokens: Sequence[int]) -> None:
        self._text.restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        """Does nothing: it needs no memory."""

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        tokens, newest = self._text.continuation(self._length, _newest_path(draft)), len(draft) - 1
        return Growth(tuple(tokens), tuple(range(newest, newest + len(tokens))))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        copied = self._text.copied(_newest_path(draft), 1)
        return (copied[0], math.exp(copied[1])) if copied is not None else None


def _newest_path(draft: DraftTree) -> list[int]:
    return [draft.tokens[node] for node in draft.path_to(len(draft) - 1 if len(draft) else ROOT)]


# Tokens; eight take little more time than one: 11.7 and 8.4 ms with weights of 135M (AMD EPYC with AVX-512 VNNI).
LEAST_PIECE, MOST_PIECE = 8, 512
MOST_DECIDED = 16  # tokens of a verdict; more at once are a question, where the device has written nothing before
ASKED_EVERY = 4  # tokens of a piece: of the head a quarter of the work
PIECE_MS = 15.0  # of a piece: a draft for the server comes no later than by this


class CompanionDrafter(MoaDrafter):
    """Drafts and writes with a companion.

    It reads the committed text when nothing else is to be done, in pieces that are short enough for the drafts of all
    conversations to come between. What its chances and its drafts are worth is learnt from what servers decide.

    `companion`: whose trust and agreement all conversations share. The guesser is for drafts alone.
    """

    def __init__(
        self,
        companion: Companion,
        *,
        shape: GrowthShape,
        guesser: TextGuesser | None = None,
        forms: BeginForm | None = None,
    ) -> None:
        self._state: CompanionState

        def new_state() -> CompanionState:
            self._state = companion.new_state()
            return self._state

        super().__init__(new_state, reads_memory=False, shape=shape, guesser=guesser, forms=forms)
        self._companion = companion
        self._decided: set[int] = set()  # positions of answers' tokens for which no choice was known
        self._has_written = False  # what is committed next is the target's word on that
        self._piece = LEAST_PIECE

    def restart(self, tokens: Sequence[int]) -> None:
        self._decided.clear()
        self._has_written = False
        super().restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        choices, first = self._draft.tree.choices_along(tokens), len(self._state.tokens)
        super().commit(tokens)
        is_answer, self._has_written = self._has_written or len(tokens) <= MOST_DECIDED, False
        for position, (token, choice) in enumerate(zip(tokens, choices, strict=True), first) if is_answer else ():
            if choice is None:
                self._decided.add(position)
            else:
                self._learn(math.exp(choice[1]), right=choice[0] == token)

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        """Reads a piece of the text, where there is one to read; whether there is more.

        `sampling`: of the newest answer, by which its own choices are compared with the target's. `writes`: for text
        without a server; else for a draft.
        """
        state = self._state
        if state.unread < LEAST_PIECE or not self._has_room(0):
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

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return super().grow(draft, sampling) if self._has_room(0) else Growth()

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        """The model's own choice, of any token, like the target's would be."""
        if not self._has_room(len(draft)):
            return None
        self._follow_form(sampling)
        self._has_written = True
        written = self._draft.write(draft, sampling, guarded=False, copies=False)
        return written.token, self._companion.trust.chance(written)

    def _learn(self, stated: float, *, right: bool) -> None:
        self._companion.trust.learn(stated, right=right)
        self._companion.agreement.add(right=right)

    def _has_room(self, more: int) -> bool:
        """Whether the text with so many more tokens is one of those that the model was made for."""
        return len(self._state.tokens) + more < self._companion.context_tokens


class CompanionPair:
    """A drafter that drafts for the server, and a companion that writes without one."""

    def __init__(self, online: ClientDrafter, companion: CompanionDrafter) -> None:
        self._online = online
        self._companion = companion
        self.reads_memory = online.reads_memory

    @property
    def most_depth(self) -> int | None:
        return self._online.most_depth

    def restart(self, tokens: Sequence[int]) -> None:
        self._online.restart(tokens)
        self._companion.restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._online.commit(tokens)
        self._companion.commit(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self._online.remember(start, rows, state=state)

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return self._online.grow(draft, sampling)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._companion.write(draft, sampling)

    def read_on(self, sampling: Sampling, *, writes: bool) -> bool:
        return writes and self._companion.read_on(sampling, writes=True)  # no draft waits for the companion
