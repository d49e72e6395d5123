"""When the device need not draft, because the server does. Pure.

State: what the newest verdicts say about the server's drafts. Invariants: the device rests until they say that it is
needed; a server that stops drafting because of others is noticed within PATIENT_VERDICTS verdicts, and one that stops
for any other reason within LONE_TIMES as many.
"""

from __future__ import annotations

from moa_shared.protocol.messages import Verdict

# Of forwards shared with others, without nodes of the server's, after which it is taken to have no time for drafts. It
# also finds many places of a text not worth a guess: of 107 pauses in three answers (1600 tokens, one user) 98 were
# shorter than 16 verdicts and two longer than 64. There the device guesses no better, and would have all memory sent.
PATIENT_VERDICTS = 64
# As many forwards of this answer alone say as much: a drafter that has failed guesses nothing any more, and an older
# server does not say which forwards are shared.
LONE_TIMES = 4
# Tokens after which a device that drafts rests for TRIAL_VERDICTS, to see whether the server has time again; it costs
# at most so many guesses of so many.
TRIAL_TOKENS, TRIAL_VERDICTS = 256, 4


class DraftingRest:
    """Whether the device rests while the server drafts.

    Args:
        may_rest: False: it always drafts.
    """

    def __init__(self, *, may_rest: bool) -> None:
        self._may_rest = may_rest
        self._patience = PATIENT_VERDICTS * LONE_TIMES  # lone forwards without nodes in them, for which it still rests
        self._is_trial = False
        self._drafted_tokens = 0

    @property
    def rests(self) -> bool:
        """Whether the server drafts, or may do so in a moment."""
        return self._may_rest and self._patience > 0

    def on_opened(self, *, server_drafts: bool) -> None:
        """A stream is open; a server that never drafts is not waited for."""
        if not server_drafts:
            self._patience = 0

    def on_verdict(self, verdict: Verdict) -> None:
        """Takes in a verdict."""
        rested = self.rests
        if verdict.server_drafted:
            self._patience, self._is_trial = PATIENT_VERDICTS * LONE_TIMES, False
        elif rested:
            self._patience -= LONE_TIMES if verdict.shared or self._is_trial else 1
        if rested or self.rests:
            self._drafted_tokens = 0
            return
        self._drafted_tokens += len(verdict.tokens)
        if self._drafted_tokens >= TRIAL_TOKENS:
            self._drafted_tokens, self._patience, self._is_trial = 0, TRIAL_VERDICTS * LONE_TIMES, True
