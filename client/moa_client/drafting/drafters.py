"""The drafters that a client can run, with one small interface; all of them run on the inference thread.

A drafter receives committed tokens and memory, and makes trees. `MoaDrafter` reads the server's memory;
`LookupDrafter` copies from the conversation; without a drafter the server answers by plain steps. Drafts keep to the
form of the running answer once it is compiled, on a thread of its own: nobody waits for a form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from moa_shared.constraints.grammar import DraftForm
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.drafting.confidence import Confidence, chance_of
from moa_shared.drafting.conversation_draft import ConversationDraft
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.drafting.growing import CHAIN, Growth, GrowthShape
from moa_shared.drafting.guesses import SHORTEST_STANDALONE, TextGuesser, TextIndex, chance_of_copy
from moa_shared.sampling.settings import Constraint, Sampling
from moa_shared.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText


class DeviceForms:
    """Compiles the forms to which a server holds answers; it has tried them.

    `new_compiler`: called on a thread, for the first form; it gives None where the library is missing.
    """

    def __init__(self, new_compiler: Callable[[], ConstraintCompiler | None]) -> None:
        self._new_compiler = new_compiler
        self._compiler: ConstraintCompiler | None = None
        self._thread: ThreadPoolExecutor | None = None  # from the first form on

    def begin(self, constraint: Constraint) -> Future[ConstrainedText | None]:
        """An answer under a constraint, before its first token; None: it cannot be had."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "forms")
        return self._thread.submit(self._begin, constraint)

    def _begin(self, constraint: Constraint) -> ConstrainedText | None:
        if self._compiler is None:
            self._compiler = self._new_compiler()
        return self._compiler.begin(constraint) if self._compiler is not None else None


class ConversationForms:
    """The form of one conversation's running answer. `forms`: of the device."""

    def __init__(self, forms: DeviceForms) -> None:
        self._forms = forms
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
            self._begun = self._forms.begin(sampling.constraint)
        if self._form is None:
            self._form = self._compiled()
        if self._form is None:
            return None
        self._answer = answer
        return self._form.after(answer)

    def _compiled(self) -> DraftForm | None:
        begun = self._begun
        if begun is None or not begun.done() or begun.exception() is not None:
            return None
        form = begun.result()
        return DraftForm(form) if form is not None else None


NOTHING = DraftTree((), ())
# Tokens since the newest row of a drafter without states, at which what it says alone is not worth showing: it was
# trained on rows of the text right before.
MOST_UNSEEN = 64
Recipe = Callable[[ConversationDrafter, Sampling], DraftTree]


class ClientDrafter(Protocol):
    """What the drafting loop needs from a drafter."""

    @property
    def reads_memory(self) -> bool: ...  # whether it uses the server's memory
    # Levels of a draft that come with its first step, and the most that there are; None: each takes a step.
    @property
    def most_depth(self) -> int | None: ...
    def restart(self, tokens: Sequence[int]) -> None: ...

    def commit(self, tokens: Sequence[int]) -> None: ...

    # Takes in rows of memory, or of the state that enters the first reused layer.
    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None: ...
    # A tree below the newest committed token; empty where there is nothing to guess.
    def draft(self, sampling: Sampling) -> DraftTree: ...
    # One step: new nodes below `draft`, which hangs below the newest committed token. Any draft may be given; what is
    # unchanged since the last call costs nothing again. Empty: until something is committed, there is nothing more to
    # guess.
    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth: ...
    # The token to write after the newest node of `draft`, and the chance that it is the target's if those of the draft
    # are; None: there is nothing to say.
    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None: ...


@runtime_checkable
class ReadingDrafter(ClientDrafter, Protocol):
    """A drafter that knows a text only once it has read it, and needs nothing else to write: it may begin answers."""

    # Reads a piece of the text, where there is one to read; whether there is more. sampling: of the newest answer,
    # which tells how often the drafter's own choice is the target's. writes: for text without a server; else for a
    # draft.
    def read_on(self, sampling: Sampling, *, writes: bool) -> bool: ...


class MoaDrafter:
    """A Mixture of Attentions drafter, or another one trained for the target.

    One that reads memory, and has none of the newest text, knows nothing: of what it writes then only copies have a
    chance of being right.

    Args:
        new_state: makes an empty state.
        recipe: of whole drafts: chain or tree.
        reads_memory: False for a drafter whose memory encoder the server does not have.
        guesser: merges what the text suggests into drafts; the recipe has its own.
        confidence: of standalone text; None: it was never measured, and the stated chances are taken for it.
        forms: of the answers; None: drafts do not keep to any.
        trial: of the drafter against look-up, in all conversations, which takes a guesser. Once the drafter is dropped,
            it is asked no more: what the text suggests is all that is drafted and written. None: it is not tried.
    """

    def __init__(
        self,
        new_state: Callable[[], ConversationDrafter],
        recipe: Recipe,
        *,
        reads_memory: bool,
        shape: GrowthShape = CHAIN,
        guesser: TextGuesser | None = None,
        confidence: Confidence | None = None,
        forms: ConversationForms | None = None,
        trial: DrafterTrial | None = None,
    ) -> None:
        self._recipe = recipe
        self._confidence = confidence
        self._forms = forms
        self._guesser = guesser
        self._trial = trial
        self._draft = ConversationDraft(new_state, shape, guesser, trial)
        self._reads_memory = reads_memory
        self._rows_stop = 0  # after the newest memory row that has come
        self._has_states = False

    @property
    def reads_memory(self) -> bool:
        return self._reads_memory and not self._is_dropped

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

    def draft(self, sampling: Sampling) -> DraftTree:
        if self._is_dropped:
            grown = self.grow(NOTHING, sampling)
            return DraftTree(grown.tokens, grown.parents)
        self._draft.growing.forget()
        return self._recipe(self._draft.state, sampling)

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        self._follow_form(sampling)
        growing = self._draft.growing
        return growing.offer(draft, sampling) if self._is_dropped else growing.grow_on(draft, sampling)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        self._follow_form(sampling)
        is_blind = self._is_blind
        if self._is_dropped or is_blind:
            copied = self._guesser.copied(_newest_path(draft), SHORTEST_STANDALONE) if self._guesser else None
            if copied is not None:
                return copied[0], math.exp(copied[1])
            if self._is_dropped:
                return None
        written = self._draft.write(draft, sampling)
        return written.token, 0.0 if is_blind else chance_of(written, self._confidence)

    @property
    def _is_dropped(self) -> bool:
        return self._trial is not None and self._trial.is_dropped is True

    @property
    def _is_blind(self) -> bool:
        if not self._reads_memory or self._has_states:
            return False
        return not self._rows_stop or self._draft.state.next_position - self._rows_stop > MOST_UNSEEN

    def _follow_form(self, sampling: Sampling) -> None:
        if self._forms is not None:
            self._draft.follow(self._forms.after(self._draft.state.tokens, sampling))


class LookupDrafter:
    """Copies continuations from the conversation (prompt look-up).

    `length`: of a chain, and of what a step adds to one.
    """

    reads_memory = False
    most_depth = None

    def __init__(self, length: int) -> None:
        self._text = TextIndex()
        self._length = length

    def restart(self, tokens: Sequence[int]) -> None:
        self._text.restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        """Does nothing: it needs no memory."""

    def draft(self, sampling: Sampling) -> DraftTree:
        return DraftTree.chain(self._text.continuation(self._length))

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return Growth.chain(draft, self._text.continuation(self._length, _newest_path(draft)), is_copy=True)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        position, size = self._text.matched(_newest_path(draft), 1)
        return (self._text.tokens[position], chance_of_copy(size)) if size else None


def _newest_path(draft: DraftTree) -> list[int]:
    return [draft.tokens[node] for node in draft.path_to(len(draft) - 1 if len(draft) else ROOT)]
