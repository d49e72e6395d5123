"""One answer as a request sees it: its parts as they come, how it has ended, and the form that its API gives it. Pure.

State: the text, what was read of it, what nobody has taken yet, and for how long the link has been lost. Invariant: the
parts of a stream add up to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from moa_shared.errors import MoaError, RateLimitError, UnavailableError
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import TokenChances

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, TextStream, Update
from moa_client.endpoint.ask import ChatAsk, Prompt
from moa_client.tools.answer_reader import AnswerSplit, CallPiece, Piece, joined
from moa_client.tools.tool import call_id
from moa_client.web.access import RequestError

REASONS = {
    Finish.END_OF_TEXT: "stop",
    Finish.STOP: "stop",
    Finish.MAX_TOKENS: "length",
    Finish.CONTEXT: "length",
    Finish.LOOP: "length",
}
CUT = "length"  # an answer that was cut where the device had come to
Fields = dict[str, Any]


@dataclass(eq=False, kw_only=True)
class Answer:
    """The only answer of a conversation.

    Args:
        identifier: tells it from all others, without a prefix: the ids of its calls depend on it.
        created: in seconds since 1970.
        fingerprint: of the model and how it is computed with, as the answer was asked for.
        prompt: what it answers, which says how it marks its parts.
        ends_unverified: one that the server does not verify in time ends with what the device has written; otherwise
            it fails.
        settle_seconds: how long the server may be lost in all.
        decoder: makes the text of its tokens again, otherwise; None: it is that of the conversation.
        stops: the strings that end it.
        told: takes in its tokens with their chances; None: nobody asks for them.
    """

    identifier: str
    created: int
    model: str
    fingerprint: str
    seed: int
    prompt: Prompt
    ends_unverified: bool
    settle_seconds: float
    decoder: AnswerDecoder | None = None
    stops: tuple[str, ...] = ()
    told: ToldTokens | None = None
    level: str = ""  # of the server that has continued it in another execution; empty: none has
    is_verified: bool = False
    reason: str | None = None  # why it has ended: "stop", "length" or "tool_calls"
    finish: Finish = Finish.UNFINISHED  # the same, more precisely, where the server or this device ended it
    failure: MoaError | None = None

    def __post_init__(self) -> None:
        self.text = AnswerText() if self.decoder is None else self.decoder.text
        self.has_parts = self.prompt.form is not None or self.prompt.thinking is not None
        self._split = AnswerSplit(self.prompt.reader())
        self._has_calls = False
        self._pieces: list[Piece] = []  # that nobody has taken
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
        """The string that has ended it; None: something else, or one of several."""
        return self.stops[0] if self.finish is Finish.STOP and len(self.stops) == 1 else None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.tokens)

    @property
    def completion_tokens(self) -> int:
        return self.text.tokens + len(self.text.waiting)

    @property
    def reasoning_tokens(self) -> int | None:
        """Committed ones, with those that mark it; None: the model is not known to reason."""
        return None if self.prompt.thinking is None else self._split.reasoning_tokens

    @property
    def verification(self) -> Fields:
        """Whether the server has decided all of it; if not, how many characters, without reasoning and calls."""
        decided = len(self._split.text)
        return {"verified": True} if self.is_verified else {"verified": False, "verified_characters": decided}

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

    def apply(self, update: Update, now: float) -> None:
        event = update.event
        if isinstance(event, events.LinkChanged):
            self.on_link(event.state, now)
            if event.state is events.LinkState.WAITING and not self.text.committed:
                limit = RateLimitError(event.reason, hint="Ask again when the time in Retry-After is over.")
                limit.retry_after_ms = round(1e3 * event.wait_seconds)
                self.fail(limit)  # a program that asks is told when to ask again, as it expects
        elif update.status is not None:
            self.on_link(update.status.state, now)
        if update.answer:
            self._apply(event)
        match event:
            case events.ExecutionChanged(level, fingerprint=fingerprint):
                self.level = level
                if self.text.tokens:  # it is of more than one
                    fingerprint = f"fp_{sha256(f'{self.fingerprint} {fingerprint}'.encode()).hexdigest()[:12]}"
                self.fingerprint = fingerprint
            case events.Failed(error):
                self.fail(error)
            case events.Ended(finish, provisional=False) | events.Settled(finish=finish):
                if finish in REASONS:
                    self.finish, self.is_verified = finish, True
                    self._end(REASONS[finish])
                else:
                    self.fail(UnavailableError("The answer was stopped before its end.", hint="Ask again."))
            case events.Refused(error=error):
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

    def _apply(self, event: events.SurfaceEvent) -> None:
        if self.decoder is not None and isinstance(event, events.AnswerEvent):
            self.decoder.take_event(event)
        else:
            self.text.apply(event)
        self._add(self._split.read(self.text.committed, self.text.tokens))
        if self.told is not None and isinstance(event, events.Committed) and event.tokens:
            if event.chances:
                self.told.take(event.tokens, event.chances)
            else:
                self.fail(_untold())

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
            if len(self.told.tokens) < self.text.tokens:
                self.fail(_untold())
            self.told.finish(self.text.committed)
        self._add(self._split.finish(self.text.provisional))
        self.reason = "tool_calls" if self._has_calls and reason == "stop" else reason

    def on_link(self, state: events.LinkState, now: float) -> None:
        """The link is in this state, from the beginning on or since `now`."""
        is_lost = state is events.LinkState.OFFLINE
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

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def whole(self) -> Fields:
        """All of an answer that is over."""
        raise NotImplementedError

    def first(self) -> bytes:
        return b""

    def next(self) -> bytes:
        """What is new; empty: nothing that this stream has."""
        return b"".join(map(self.part, self.answer.take()))

    def part(self, piece: Piece) -> bytes:
        raise NotImplementedError

    def last(self) -> bytes:
        """Ends the stream of an answer that is over; what was still to be sent comes before that."""
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


Asked = tuple[ChatAsk, Callable[[Answer], Form]]  # what a request asks, and how its answer is sent


@dataclass(frozen=True, slots=True)
class ToldToken:
    """One token of a text.

    Args:
        text: what it adds to the text; of the tokens of one character the last one adds it.
        start: characters of the text before it.
        chance: the natural logarithm of its probability.
        likeliest: the likeliest tokens in its place, in UTF-8, with theirs.
    """

    text: str
    start: int
    chance: float
    likeliest: tuple[tuple[bytes, float], ...]

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class ToldTokens:
    """The tokens of one text; `decode`: text of some tokens, as the whole text is made."""

    def __init__(self, tokenizer: Tokenizer, decode: Callable[[Sequence[int]], str]) -> None:
        self.tokens: list[ToldToken] = []
        self._tokenizer = tokenizer
        self._stream = TextStream(decode)

    def take(self, tokens: Sequence[int], chances: Sequence[TokenChances]) -> None:
        for token, each in zip(tokens, chances, strict=True):
            likeliest = zip(map(self._tokenizer.token_bytes, each.tokens), each.chances, strict=True)
            start = self.tokens[-1].end if self.tokens else 0
            self.tokens.append(ToldToken(self._stream.push((token,)), start, each.chosen, tuple(likeliest)))

    def finish(self, text: str) -> None:
        """Ends the text; `text`: as it was sent, which may leave its end out."""
        if self.tokens:
            self.tokens[-1] = replace(self.tokens[-1], text=self.tokens[-1].text + self._stream.finish())
        for number, token in enumerate(self.tokens):
            start = min(token.start, len(text))
            self.tokens[number] = replace(token, text=token.text[: len(text) - start], start=start)
