"""The JSON objects of ollama's API that an answer is sent as: whole, or one a line as it comes. Pure but for a clock.

What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.responses import Response

from moa_client.endpoint.answer_parts import AnswerParts, Part
from moa_client.endpoint.asked import AnswerHeader, Fields
from moa_client.endpoint.progress import AnswerProgress
from moa_client.tools.reading.pieces import CallEnded, TextPiece
from moa_client.tools.thinking import ReasoningPiece
from moa_client.web.error_form import RequestError

PATH = "/api/"
REASONS = {"tool_calls": "stop"}  # the others are ollama's own


class OllamaForm:
    """An answer as ollama has it; implements `AnswerForm`.

    State: what its stream has sent, and when the answer was asked for and began.

    Args:
        parts: of the answer; None: its text is sent as it is.
        shows_thinking: reasoning is sent.
        clock: in ns.
    """

    media_type = "application/x-ndjson"

    def __init__(
        self,
        header: AnswerHeader,
        parts: AnswerParts | None,
        *,
        shows_thinking: bool,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._header = header
        self._parts = parts
        self._shows_thinking = shows_thinking
        self._clock = clock
        self._asked = self._begun = clock()  # where an answer is sent whole, nothing says when it began
        self._sent = 0  # characters of committed text
        self._calls = 0  # that were sent

    @property
    def keep_alive(self) -> bytes:
        """An object without text: clients would stumble over an empty line."""
        return self._chunk(self._content("", "", []))

    def whole(self, progress: AnswerProgress) -> Fields:
        """An answer that is over."""
        text = progress.text.committed + progress.text.provisional
        reasoning, calls = "", []
        if self._parts is not None:
            self._parts.push(text)
            self._parts.finish()
            text, reasoning = self._parts.text, self._parts.reasoning if self._shows_thinking else ""
            calls = _calls(self._parts, 0)
        return self._end(self._content(text, reasoning, calls), progress)

    def first(self) -> bytes:
        """Begins a stream: with nothing."""
        return b""

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        committed = progress.text.committed
        piece, self._sent = committed[self._sent :], len(committed)
        if piece and len(piece) == self._sent:
            self._begun = self._clock()
        return self._text(piece)

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends a stream: with its unverified text, if that is how it ends."""
        lines = self._text(progress.text.provisional)
        if self._parts is not None:
            lines += self._of_parts(self._parts, self._parts.finish())
            cut = _calls(self._parts, self._calls)
            lines += self._chunk(self._content("", "", cut)) if cut else b""
        return lines + _line(self._end(self._content("", "", []), progress))

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        return _line(error.ollama_fields)

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        return error.response(PATH)

    def _content(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        """The fields of an object that have a piece of the answer."""
        raise NotImplementedError

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        if self._parts is None:
            return self._chunk(self._content(text, "", []))
        return self._of_parts(self._parts, self._parts.push(text))

    def _of_parts(self, whole: AnswerParts, parts: list[Part]) -> bytes:
        return b"".join([self._part(part, whole) for part in parts])

    def _part(self, part: Part, whole: AnswerParts) -> bytes:
        match part:
            case TextPiece(text):
                return self._chunk(self._content(text, "", []))
            case ReasoningPiece(text) if self._shows_thinking:
                return self._chunk(self._content("", text, []))
            case CallEnded(index):
                calls, self._calls = _calls(whole, self._calls)[: index + 1 - self._calls], index + 1
                return self._chunk(self._content("", "", calls))
        return b""

    def _chunk(self, content: Fields) -> bytes:
        return _line({**self._fields(), **content, "done": False})

    def _end(self, content: Fields, progress: AnswerProgress) -> Fields:
        """The last object of an answer, or the only one."""
        now = self._clock()
        reason = progress.reason or ""
        if self._parts is not None:
            reason = self._parts.reason(reason)
        return {
            **self._fields(),
            **content,
            "done": True,
            "done_reason": REASONS.get(reason, reason),
            "total_duration": now - self._asked,
            "load_duration": 0,
            "prompt_eval_count": self._header.prompt_tokens,
            "prompt_eval_duration": self._begun - self._asked,
            "eval_count": progress.completion_tokens,
            "eval_duration": now - self._begun,
            "moa": {"seed": self._header.seed, "verified": progress.is_verified},
        }

    def _fields(self) -> Fields:
        """The first fields of an object."""
        return {"model": self._header.model, "created_at": date_of(self._header.created)}


class ChatForm(OllamaForm):
    """The next message of a chat."""

    def _content(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        message: Fields = {"role": "assistant", "content": text}
        if reasoning:
            message["thinking"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return {"message": message}


class TextForm(OllamaForm):
    """The answer to a prompt."""

    def _content(self, text: str, reasoning: str, calls: list[Fields]) -> Fields:
        return {"response": text, **({"thinking": reasoning} if reasoning else {})}


def date_of(seconds: int) -> str:
    """A time since 1970 as ollama has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _calls(whole: AnswerParts, first: int) -> list[Fields]:
    """The calls of an answer from a number on; ollama has no parts of calls."""
    return [
        {"id": call.id, "function": {"index": index, "name": call.name, "arguments": call.values}}
        for index, call in enumerate(whole.calls)
        if index >= first
    ]


def _line(fields: Fields) -> bytes:
    return f"{json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n".encode()
