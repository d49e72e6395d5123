"""One answer as a request sees it: its parts as they come, and how it has ended. Pure.

State: the text, what was read of it, what nobody has taken yet, and for how long the link has been lost. Invariant: the
parts of a stream add up to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from moa_shared.errors import MoaError, RateLimitError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update
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
from moa_client.endpoint.ask import ChatAsk, Prompt
from moa_client.endpoint.tokens import StopSearch, ToldTokens
from moa_client.tools.answer_reader import CallPiece, Piece, joined
from moa_client.tools.thinking import ReasoningPiece, TextPiece
from moa_client.tools.tool import call_id
from moa_client.web.error_form import RequestError

REASONS = {
    Finish.END_OF_TEXT: "stop",
    Finish.STOP: "stop",
    Finish.MAX_TOKENS: "length",
    Finish.CONTEXT: "length",
    Finish.LOOP: "length",
}
CUT = "length"  # an answer that was cut where the device had come to


@dataclass(eq=False, kw_only=True)
class Answer:
    """The only answer of a conversation.

    Args:
        ends_unverified: one that the server does not verify in time ends with what the device has written; otherwise
            it fails.
        settle_seconds: how long the server may be lost in all.
        identifier: tells it from all others: the ids of its calls depend on it.
        prompt: what it answers, which says how it marks its parts.
        decoder: makes the text of its tokens again, otherwise; None: it is that of the conversation.
        stops: the strings that end it; None: there are none.
        told: takes in its tokens with their chances; None: nobody asks for them.
    """

    ends_unverified: bool
    prompt: Prompt
    settle_seconds: float
    identifier: str = ""
    decoder: AnswerDecoder | None = None
    stops: StopSearch | None = None
    told: ToldTokens | None = None
    level: str = ""  # of the server that has continued it in another execution; empty: none has
    withdrawn: int = 0  # tokens in all that were provisional and were taken back
    link: LinkState = LinkState.GOOD
    is_verified: bool = False
    verified_characters: int = 0  # of its own text, without reasoning and calls
    reasoning_tokens: int | None = None  # committed, with those that mark it; None: the model is not known to reason
    reason: str | None = None  # why it has ended: "stop", "length" or "tool_calls"
    finish: Finish = Finish.UNFINISHED  # the same, more precisely, where the server or this device ended it
    failure: MoaError | None = None

    def __post_init__(self) -> None:
        self.text = AnswerText() if self.decoder is None else self.decoder.text
        self.has_parts = self.prompt.form is not None or self.prompt.thinking is not None
        self.reasoning_tokens = None if self.prompt.thinking is None else 0
        self._reader = self.prompt.reader()
        self._has_calls = False
        self._pieces: list[Piece] = []  # that nobody has taken
        self._read = 0  # characters of committed text
        self._counted = 0  # tokens of it
        self._executions: list[str] = []  # fingerprints of those that have continued it
        self._begins_elsewhere = False  # in the first of these: it had no text yet
        self._lost_seconds = 0.0
        self._lost_at: float | None = None

    @property
    def is_over(self) -> bool:
        return self.reason is not None or self.failure is not None

    @property
    def is_whole(self) -> bool:
        """Whether it has come to its own end."""
        return self.reason != CUT

    @property
    def stop(self) -> str | None:
        """The string that has ended it; None: something else."""
        if self.finish is not Finish.STOP or self.stops is None:
            return None
        return self.stops.found(self.text.waiting)

    @property
    def completion_tokens(self) -> int:
        return self.text.tokens + len(self.text.waiting)

    @property
    def deadline(self) -> float | None:
        """When the server has been lost for too long, on the caller's clock; None: it is there."""
        return None if self._lost_at is None else self._lost_at + self.settle_seconds - self._lost_seconds

    def take(self) -> list[Piece]:
        """The parts that have come since the last call: committed ones, and with its end all that there are."""
        pieces, self._pieces = joined(self._pieces), []
        return pieces

    def call_id(self, piece: CallPiece) -> str:
        return call_id(self.identifier, piece.index)

    def ahead(self, provisional: str) -> tuple[str, str]:
        """The reasoning and the text that follow if the answer ends with this text after what is committed."""
        return parted(self._reader.ahead(provisional))[:2]

    def fingerprint(self, first: str) -> str:
        """Of the model and of what the text was computed with; `first`: as the answer was asked for."""
        parts = ([] if self._begins_elsewhere else [first]) + self._executions
        return parts[0] if len(parts) == 1 else f"fp_{sha256(' '.join(parts).encode()).hexdigest()[:12]}"

    def apply(self, update: Update, now: float) -> None:
        event = update.event
        if isinstance(event, LinkChanged):
            self.on_link(event.state, now)
            if event.state is LinkState.WAITING and not self.text.committed:
                self.fail(_rate_limit(event))
        elif update.status is not None:
            self.on_link(update.status.state, now)
        if update.answer:
            self._apply(event)
        match event:
            case ExecutionChanged(level, fingerprint=fingerprint):
                if not self.text.tokens:
                    self._executions, self._begins_elsewhere = [], True
                self._executions.append(fingerprint)
                self.level = level
            case Failed(error):
                self.fail(error)
            case Corrected(dropped):
                self.withdrawn += dropped
            case Ended(finish, provisional=False) | Settled(finish=finish):
                if finish in REASONS:
                    self.finish, self.is_verified = finish, True
                    self._end(REASONS[finish])
                else:
                    self.fail(UnavailableError("The answer was stopped before its end.", hint="Ask again."))
            case Refused(error=error):
                self.give_up(error)

    def give_up(self, error: MoaError | None = None) -> None:
        """Waits for the server no longer; `error`: why, if it was not lost for too long."""
        error = error or UnavailableError(
            f"The server was lost for {self.settle_seconds:g} s and has not verified the answer.",
            hint="Ask again when it is back.",
        )
        if not self.ends_unverified or not (self.text.committed or self.text.provisional):
            self.fail(error)
        else:
            self.finish = self.text.finish
            self._end(REASONS.get(self.finish, CUT))

    def fail(self, error: MoaError) -> None:
        """The answer ends here, unless it is over."""
        if not self.is_over:
            self.failure = error

    def _apply(self, event: SurfaceEvent) -> None:
        if self.stops is not None and isinstance(event, Committed | Settled):
            self.stops.push(event.tokens[self.text.decided if isinstance(event, Settled) else 0 :])
        if self.decoder is not None and isinstance(event, AnswerEvent):
            self.decoder.take_event(event)
        else:
            self.text.apply(event)
        self._read_committed()
        if self.told is not None and isinstance(event, Committed) and event.tokens:
            if event.chances:
                self.told.take(event.tokens, event.chances)
            else:
                self.fail(_untold())

    def _read_committed(self) -> None:
        committed, was_thinking = self.text.committed, self._reader.is_thinking
        pieces = self._reader.push(committed[self._read :]) if len(committed) > self._read else []
        self._read = len(committed)
        self._add(pieces)
        if self.reasoning_tokens is not None and (
            was_thinking or self._reader.is_thinking or any(isinstance(each, ReasoningPiece) for each in pieces)
        ):
            self.reasoning_tokens += self.text.tokens - self._counted
        self._counted = self.text.tokens
        self.verified_characters += sum(len(each.text) for each in pieces if isinstance(each, TextPiece))

    def _add(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, CallPiece):
                if piece.index and not self.prompt.offer.is_parallel:
                    continue  # one too many
                self._has_calls = True
            self._pieces.append(piece)

    def _end(self, reason: str) -> None:
        """The text is all there: all its tokens were told."""
        if self.told is not None:
            if len(self.told) < self.text.tokens:
                self.fail(_untold())
            self.told.finish(self.text.committed)
        self._add([*self._reader.push(self.text.provisional), *self._reader.finish()])
        if self._reader.is_cut:
            reason = CUT
        elif self._has_calls and reason == "stop":
            reason = "tool_calls"
        self.reason = reason

    def on_link(self, state: LinkState, now: float) -> None:
        """The link is in this state, from the beginning on or since `now`."""
        self.link = state
        is_lost = state is LinkState.OFFLINE
        if is_lost and self._lost_at is None:
            self._lost_at = now
        elif not is_lost and self._lost_at is not None:
            self._lost_seconds += now - self._lost_at
            self._lost_at = None


def parted(pieces: Sequence[Piece]) -> tuple[str, str, list[CallPiece]]:
    """The reasoning, the text and the calls of some pieces."""
    reasoning = "".join([piece.text for piece in pieces if isinstance(piece, ReasoningPiece)])
    text = "".join([piece.text for piece in pieces if isinstance(piece, TextPiece)])
    return reasoning, text, [piece for piece in pieces if isinstance(piece, CallPiece)]


def _untold() -> UnavailableError:
    return UnavailableError(
        "The server has not told how likely it finds some tokens of the answer.",
        hint="Ask again; if that does not help, the server is older than this device: have it updated.",
    )


def _rate_limit(event: LinkChanged) -> RateLimitError:
    """Why there is no answer yet: the program that asks is told when to ask again, as it expects."""
    error = RateLimitError(event.reason, hint="Ask again when the time in Retry-After is over.")
    error.retry_after_ms = round(1e3 * event.wait_seconds)
    return error


Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    """What is known of an answer before it begins.

    Args:
        identifier: without a prefix; `created`: in seconds since 1970.
        fingerprint: of the model and how it is computed with.
    """

    identifier: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    seed: int


class Form:
    """The answer to one request as its API has it: whole, or as a stream. State: what its stream has sent.

    What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.

    Attributes:
        media_type: of the stream; `keep_alive`: what one with nothing to say sends, which clients skip.
        path: where errors have the form of this API.
    """

    media_type = "text/event-stream; charset=utf-8"
    keep_alive = b": waiting\n\n"
    path = ""

    def __init__(self, header: AnswerHeader) -> None:
        self.header = header

    def whole(self, answer: Answer) -> Fields:
        raise NotImplementedError

    def first(self, answer: Answer) -> bytes:
        return b""

    def next(self, answer: Answer) -> bytes:
        """What is new; empty: nothing that this stream has."""
        return b"".join([self.part(piece, answer) for piece in answer.take()])

    def last(self, answer: Answer) -> bytes:
        """Ends a stream whose answer is over; with what was still to be sent."""
        return self.next(answer) + self.end(answer)

    def part(self, piece: Piece, answer: Answer) -> bytes:
        """What a piece of the answer is sent as."""
        raise NotImplementedError

    def end(self, answer: Answer) -> bytes:
        """Ends the stream of an answer, all of which was sent."""
        raise NotImplementedError

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        return event(error.fields_at(self.path))


def event(fields: Mapping[str, Any], name: str = "") -> bytes:
    """A server-sent event; `name`: of its kind, if it has one."""
    heading = f"event: {name}\n" if name else ""
    return f"{heading}data: {written(fields)}\n\n".encode()


def written(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def verification(answer: Answer) -> Fields:
    """Whether the server has decided all of an answer; if not, how many of its characters."""
    if answer.is_verified:
        return {"verified": True}
    return {"verified": False, "verified_characters": answer.verified_characters}


Asked = tuple[ChatAsk, Callable[[AnswerHeader], Form]]  # what a request asks, and how its answers are sent
