"""One answer as a request sees it: its text, and how it has ended. Pure.

State: the text, and for how long the link has been lost.
"""

from __future__ import annotations

from moa_shared.errors import MoaError, RateLimitError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerEvent,
    AnswerOutcome,
    Corrected,
    Ended,
    Failed,
    LinkChanged,
    LinkState,
    Refused,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.updates import Update
from moa_client.tools.answer_split import AnswerSplit

REASONS = {
    Finish.END_OF_TEXT: "stop",
    Finish.STOP: "stop",
    Finish.MAX_TOKENS: "length",
    Finish.CONTEXT: "length",
    Finish.LOOP: "length",
}
CUT = "length"  # an answer that was cut where the device had come to


class AnswerProgress:
    """The only answer of a conversation.

    Args:
        ends_unverified: an answer that the server does not verify in time ends with what the device has written;
            otherwise it fails.
        settle_seconds: how long the server may be lost in all.
        decoder: makes the text of the answer's tokens again, otherwise; None: it is that of the conversation.
        split: of the answer before its first token, to count those of its reasoning; None: it has none.
    """

    def __init__(
        self,
        *,
        ends_unverified: bool,
        settle_seconds: float,
        decoder: AnswerDecoder | None = None,
        split: AnswerSplit | None = None,
    ) -> None:
        self.text = AnswerText() if decoder is None else decoder.text
        self._decoder = decoder
        self._split = split
        self.withdrawn = 0  # tokens in all that were provisional and were taken back
        self.link = LinkState.GOOD
        self.is_verified = False
        self.reason: str | None = None  # why it has ended
        self.failure: MoaError | None = None
        self._ends_unverified = ends_unverified
        self._settle_seconds = settle_seconds
        self._lost_seconds = 0.0
        self._lost_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.reason is not None or self.failure is not None

    @property
    def completion_tokens(self) -> int:
        """Of the answer so far."""
        return self.text.tokens + len(self.text.waiting)

    @property
    def reasoning_tokens(self) -> int | None:
        """Committed tokens of its reasoning, with those that mark it; None: the model is not known to have any."""
        return None if self._split is None else self._split.reasoning_tokens

    @property
    def deadline(self) -> float | None:
        """When the server has been lost for too long, on the caller's clock; None: it is there."""
        return None if self._lost_at is None else self._lost_at + self._settle_seconds - self._lost_seconds

    def begin(self, state: LinkState, now: float) -> None:
        """The answer is asked for over a link in this state."""
        self._on_link(state, now)

    def apply(self, update: Update, now: float) -> None:
        """Applies an update that has come `now`."""
        event = update.event
        if isinstance(event, LinkChanged):
            self._on_link(event.state, now)
            if event.state is LinkState.WAITING and not self.text.committed:
                self.fail(_rate_limit(event))
        elif update.status is not None:
            self._on_link(update.status.state, now)
        if update.answer:
            self._apply(event)
        match event:
            case Failed(error):
                self.fail(error)
            case Corrected(dropped):
                self.withdrawn += dropped
            case Ended(finish, provisional=False):
                self._end(finish, is_verified=True)
            case Settled(finish=finish, outcome=outcome):
                self._end(finish, is_verified=outcome is not AnswerOutcome.KEPT)
            case Refused(error=error):
                self.give_up(error)

    def give_up(self, error: MoaError | None = None) -> None:
        """Waits for the server no longer.

        Args:
            error: why; None: it was lost for too long.
        """
        error = error or UnavailableError(
            f"The server was lost for {self._settle_seconds:g} s and has not verified the answer.",
            hint="Ask again when it is back.",
        )
        if not self._ends_unverified or not (self.text.committed or self.text.provisional):
            self.fail(error)
        else:
            self.reason = REASONS.get(self.text.finish, CUT)

    def fail(self, error: MoaError) -> None:
        """The answer ends here, unless it is over."""
        if not self.is_over:
            self.failure = error

    def _apply(self, event: SurfaceEvent) -> None:
        if self._decoder is not None and isinstance(event, AnswerEvent):
            self._decoder.take(event)
        else:
            self.text.apply(event)
        if self._split is not None:
            self._split.read(self.text.committed, self.text.tokens)

    def _end(self, finish: Finish, *, is_verified: bool) -> None:
        if finish not in REASONS:
            self.fail(UnavailableError("The answer was stopped before its end.", hint="Ask again."))
        else:
            self.reason, self.is_verified = REASONS[finish], is_verified

    def _on_link(self, state: LinkState, now: float) -> None:
        self.link = state
        is_lost = state is LinkState.OFFLINE
        if is_lost and self._lost_at is None:
            self._lost_at = now
        elif not is_lost and self._lost_at is not None:
            self._lost_seconds += now - self._lost_at
            self._lost_at = None


def _rate_limit(event: LinkChanged) -> RateLimitError:
    """Why there is no answer yet: the program that asks is told when to ask again, as it expects."""
    error = RateLimitError(event.reason, hint="Ask again when the time in Retry-After is over.")
    error.retry_after_ms = round(1e3 * event.wait_seconds)
    return error
