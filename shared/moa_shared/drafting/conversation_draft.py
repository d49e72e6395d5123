"""One conversation's drafter with its draft in flight and what its text suggests, kept on the same text.

State: a drafter's state, made again when the conversation is another one. Invariant: drafter, draft in flight and
guesser have read the same tokens.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from moa_shared.drafting.base import ConversationDrafter, TextForm
from moa_shared.drafting.confidence import WrittenToken
from moa_shared.drafting.estimates import DrafterTrial
from moa_shared.drafting.growing import GrowingDraft, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree


class ConversationDraft:
    def __init__(
        self,
        new_state: Callable[[], ConversationDrafter],
        shape: GrowthShape,
        guesser: TextGuesser | None = None,
        trial: DrafterTrial | None = None,
    ) -> None:
        self._new_state = new_state
        self._shape = shape
        self._guesser = guesser
        self._trial = trial
        self.state = new_state()
        self.growing = GrowingDraft(self.state, shape, guesser)
        self.form: TextForm | None = None

    def follow(self, form: TextForm | None) -> None:
        self.form = form
        self.growing.follow(form)

    def restart(self, tokens: Sequence[int]) -> int:
        """Sets the tokens of the conversation; how many of them the drafter knew."""
        common = 0
        for mine, theirs in zip(self.state.tokens, tokens, strict=False):
            if mine != theirs:
                break
            common += 1
        if common:
            self.state.crop(common)
            self.growing.forget()
        else:
            self.state = self._new_state()
            self.growing = GrowingDraft(self.state, self._shape, self._guesser)
            self.growing.follow(self.form)
        self.growing.commit(tokens[common:])
        if self._guesser is not None:
            self._guesser.restart(tokens)
        return common

    def commit(self, tokens: Sequence[int]) -> None:
        if self._guesser is not None:
            if self._trial is not None and self._trial.is_open:
                self._judge(tokens, self._guesser, self._trial)
            self._guesser.extend(tokens)
        self.growing.commit(tokens)

    def drop(self) -> None:
        """Forgets what was computed of a draft, which may be large, but for the choices that a trial judges."""
        self.growing.forget(text_stays=True)
        self.state.crop(self.state.next_position)

    def write(
        self, written: DraftTree, sampling: Sampling, *, guarded: bool = True, copies: bool = True
    ) -> WrittenToken:
        """The next token of standalone text.

        Args:
            written: the text since the newest committed token, a chain.
            guarded: no run of tokens occurs in it a second time (`barred_after`).
            copies: what the conversation has after the same tokens is written where it is likelier.
        """
        barred = barred_after(written.tokens) if guarded else ()
        return self.growing.next_token(written, sampling, barred, copies=copies)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        """Takes in rows of memory, or of the state that enters the first reused layer."""
        if state:
            self.state.append_reused_state(start, rows)
        else:
            self.state.append_memory(start, rows)

    def _judge(self, tokens: Sequence[int], guesser: TextGuesser, trial: DrafterTrial) -> None:
        for index, choice in enumerate(self.growing.choices_along(tokens)):
            if choice is not None:
                trial.add(tokens[index], choice[0], guesser.looked_up(tokens[:index]))


RUN = 6  # tokens; with 4 the target's likelihood falls more, with 8 repetition is above the target's own


def barred_after(written: Sequence[int], run: int = RUN) -> frozenset[int]:
    """Tokens that would write a run of `run` tokens a second time after `written`."""
    if len(written) < run:
        return frozenset()
    newest = tuple(written[1 - run :])
    span = run - 1
    return frozenset(
        written[at + span] for at in range(len(written) - span) if tuple(written[at : at + span]) == newest
    )
