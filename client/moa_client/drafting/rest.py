"""When the device need not draft, because the server does. Pure.

State: what the newest verdicts say about the server's drafts. Invariant: a server that stops drafting, as it does under
load, is noticed within QUIET_VERDICTS verdicts.
"""

from __future__ import annotations

from moa_shared.protocol.messages import Verdict

QUIET_VERDICTS = 4  # without nodes of the server's: it finds some places of a text not worth a guess
# Tokens after which a device that drafts rests for QUIET_VERDICTS, to see whether the server has time again; it costs
# at most QUIET_VERDICTS guesses of so many.
TRIAL_TOKENS = 256


class DraftingRest:
    """Whether the device rests while the server drafts.

    Args:
        may_rest: False: it always drafts.
    """

    def __init__(self, *, may_rest: bool) -> None:
        self._may_rest = may_rest
        self._quiet = QUIET_VERDICTS
        self._drafted_tokens = 0

    @property
    def rests(self) -> bool:
        """Whether the server drafts, or may do so in a moment."""
        return self._may_rest and self._quiet < QUIET_VERDICTS

    def on_verdict(self, verdict: Verdict) -> None:
        """Takes in a verdict."""
        rested = self.rests
        if verdict.server_drafted:
            self._quiet = 0
        elif rested:
            self._quiet += 1
        if rested or self.rests:
            self._drafted_tokens = 0
            return
        self._drafted_tokens += len(verdict.tokens)
        if self._drafted_tokens >= TRIAL_TOKENS:
            self._drafted_tokens = self._quiet = 0
