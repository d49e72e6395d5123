"""One answer as a request sees it: its text, and how it has ended. Pure.

State: the text, and for how long the link has been lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from moa_shared.errors import MoaError, RateLimitError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    AnswerEvent,
    Committed,
    Corrected,
    Ended,
    ExecutionChanged,
    Failed,
    LinkChanged,
    LinkState,
    Refused,
    Settled,
    SurfaceEvent,
)
from moa_client.endpoint.stop_search import StopSearch
from moa_client.endpoint.told_tokens import ToldTokens
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
        stops: the strings that end it; None: there are none.
        told: takes in the answer's tokens with their chances; None: nobody asks for them.
        echoed: the prompt's, where it is repeated before the answer.
        split: of the answer before its first token, to tell its reasoning apart; None: it has none.
    """

    def __init__(
        self,
        *,
        ends_unverified: bool,
        settle_seconds: float,
        decoder: AnswerDecoder | None = None,
        stops: StopSearch | None = None,
        told: ToldTokens | None = None,
        echoed: ToldTokens | None = None,
        split: AnswerSplit | None = None,
    ) -> None:
        self.text = AnswerText() if decoder is None else decoder.text
        self.told = told
        self.echoed = echoed
        self._decoder = decoder
        self._stops = stops
        self._split = split
        self.level = ""  # of the server that has continued it in another execution; empty: none has
        self._executions: list[str] = []  # their fingerprints
        self._begins_elsewhere = False  # in the first of these: it had no text yet
        self.withdrawn = 0  # tokens in all that were provisional and were taken back
        self.link = LinkState.GOOD
        self.is_verified = False
        self.reason: str | None = None  # why it has ended
        self.finish = Finish.UNFINISHED  # the same, more precisely, where the server or this device ended it
        self.failure: MoaError | None = None
        self._ends_unverified = ends_unverified
        self._settle_seconds = settle_seconds
        self._lost_seconds = 0.0
        self._lost_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.reason is not None or self.failure is not None

    def fingerprint(self, first: str) -> str:
        """Of the model and of what the text was computed with.

        Args:
            first: as the answer was asked for.
        """
        parts = [] if self._begins_elsewhere else [first]
        parts += self._executions
        return parts[0] if len(parts) == 1 else f"fp_{sha256(' '.join(parts).encode()).hexdigest()[:12]}"

    @property
    def stop(self) -> str | None:
        """The string that has ended it; None: something else."""
        if self.finish is not Finish.STOP or self._stops is None:
            return None
        return self._stops.found(self.text.waiting)

    @property
    def completion_tokens(self) -> int:
        """Of the answer so far."""
        return self.text.tokens + len(self.text.waiting)

    @property
    def reasoning_tokens(self) -> int | None:
        """Committed tokens of its reasoning, with those that mark it; None: the model is not known to have any."""
        return None if self._split is None else self._split.reasoning_tokens

    def ahead(self, provisional: str) -> tuple[str, str]:
        """The reasoning and the text in provisional text; for an answer that can call nothing."""
        return ("", provisional) if self._split is None else self._split.ahead(provisional)

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
            case ExecutionChanged():
                self._on_execution(event)
            case Failed(error):
                self.fail(error)
            case Corrected(dropped):
                self.withdrawn += dropped
            case Ended(finish, provisional=False) | Settled(finish=finish):
                self._end(finish)
            case Refused(error=error):
                self.give_up(error)

    def _on_execution(self, changed: ExecutionChanged) -> None:
        if not self.text.tokens:
            self._executions, self._begins_elsewhere = [], True
        self._executions.append(changed.fingerprint)
        self.level = changed.level

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
            self._finish_told()
            self.finish = self.text.finish
            self.reason = REASONS.get(self.finish, CUT)

    def end_unasked(self) -> None:
        """No answer was wanted."""
        self.reason, self.is_verified = CUT, True

    def fail(self, error: MoaError) -> None:
        """The answer ends here, unless it is over."""
        if not self.is_over:
            self.failure = error

    def _apply(self, event: SurfaceEvent) -> None:
        if self._stops is not None and isinstance(event, Committed | Settled):
            self._stops.push(event.tokens[self.text.decided if isinstance(event, Settled) else 0 :])
        if self._decoder is not None and isinstance(event, AnswerEvent):
            self._decoder.take(event)
        else:
            self.text.apply(event)
        if self._split is not None:
            self._split.read(self.text.committed, self.text.tokens)
        if self.told is not None and isinstance(event, Committed) and event.tokens:
            if event.chances:
                self.told.take(event.tokens, event.chances)
            else:
                self.fail(_untold())

    def _finish_told(self) -> None:
        """The text is all there: all its tokens were told."""
        if self.told is None:
            return
        if len(self.told) < self.text.tokens:
            self.fail(_untold())
        self.told.finish(self.text.committed)

    def _end(self, finish: Finish) -> None:
        if finish not in REASONS:
            self.fail(UnavailableError("The answer was stopped before its end.", hint="Ask again."))
        else:
            self._finish_told()
            self.reason, self.finish, self.is_verified = REASONS[finish], finish, True

    def _on_link(self, state: LinkState, now: float) -> None:
        self.link = state
        is_lost = state is LinkState.OFFLINE
        if is_lost and self._lost_at is None:
            self._lost_at = now
        elif not is_lost and self._lost_at is not None:
            self._lost_seconds += now - self._lost_at
            self._lost_at = None


def _untold() -> UnavailableError:
    return UnavailableError(
        "The server has not told how likely it finds some tokens of the answer.",
        hint="Ask again; if that does not help, the server is older than this device: have it updated.",
    )


@dataclass(frozen=True, slots=True)
class ChoicesProgress:
    """Several answers, of which all must succeed."""

    answers: Sequence[AnswerProgress]

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.failure is not None or all(answer.is_over for answer in self.answers)

    @property
    def failure(self) -> MoaError | None:
        """Of the first that has failed."""
        return next((answer.failure for answer in self.answers if answer.failure is not None), None)


def _rate_limit(event: LinkChanged) -> RateLimitError:
    """Why there is no answer yet: the program that asks is told when to ask again, as it expects."""
    error = RateLimitError(event.reason, hint="Ask again when the time in Retry-After is over.")
    error.retry_after_ms = round(1e3 * event.wait_seconds)
    return error
