"""How answers are sent: what every API's form has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_client.endpoint.answer import Answer
from moa_client.endpoint.ask import ChatAsk
from moa_client.tools.answer_reader import Piece
from moa_client.web.error_form import RequestError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    """What is known of answers before they begin.

    Args:
        identifier: without a prefix; `created`: in seconds since 1970.
        fingerprint: of the model and how it is computed with.
        prompt_tokens: of all questions; `seeds`: of each answer.
    """

    identifier: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    seeds: tuple[int, ...]


class Form:
    """The answers to one request as its API has them: whole, or as a stream. State: what its stream has sent.

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

    def whole(self, answers: Sequence[Answer]) -> Fields:
        raise NotImplementedError

    def first(self, answers: Sequence[Answer]) -> bytes:
        return b""

    def next(self, answers: Sequence[Answer]) -> bytes:
        """What is new; empty: nothing that this stream has."""
        return b"".join([self.part(piece, answers[0]) for piece in answers[0].take()])

    def last(self, answers: Sequence[Answer]) -> bytes:
        """Ends a stream whose answers are over; with what was still to be sent."""
        return self.next(answers) + self.end(answers[0])

    def part(self, piece: Piece, answer: Answer) -> bytes:
        """What a piece of the only answer is sent as."""
        raise NotImplementedError

    def end(self, answer: Answer) -> bytes:
        """Ends the stream of the only answer, all of which was sent."""
        raise NotImplementedError

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream of which an answer has failed."""
        return event(error.fields)


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
