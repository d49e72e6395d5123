"""The JSON objects of Anthropic's API that an answer is sent as: a whole message, or the events of a stream. Pure.

What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.
"""

from __future__ import annotations

from typing import Any

from moa_shared.protocol.finish_rule import Finish
from starlette.responses import Response

from moa_client.endpoint.answer_parts import AnswerParts, Part
from moa_client.endpoint.asked import AnswerHeader, Fields
from moa_client.endpoint.events import EVENT_STREAM, event
from moa_client.endpoint.progress import AnswerProgress
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, TextPiece
from moa_client.tools.thinking import ReasoningPiece
from moa_client.web.error_form import RequestError

PATH = "/v1/messages"
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageForm:
    """An answer as Anthropic has it; implements `AnswerForm`.

    State: what its stream has sent. Invariant: blocks begin and end in turn, and the last one ends with the stream.

    Args:
        parts: of the answer; None: its text is sent as it is.
        shows_thinking: reasoning is sent.
    """

    media_type = EVENT_STREAM
    keep_alive = event({"type": "ping"}, "ping")

    def __init__(self, header: AnswerHeader, parts: AnswerParts | None, *, shows_thinking: bool) -> None:
        self._header = header
        self._parts = parts
        self._shows_thinking = shows_thinking
        self._sent = 0  # characters of committed text
        self._blocks = 0  # that were begun
        self._open = ""  # the type of the block that has not ended

    def whole(self, progress: AnswerProgress) -> Fields:
        """An answer that is over."""
        text = progress.text.committed + progress.text.provisional
        content: list[Fields] = []
        if self._parts is None:
            content = [{"type": "text", "text": text}] if text else []
        else:
            for part in [*self._parts.push(text), *self._parts.finish()]:
                self._add(content, part, self._parts)
        return {
            **self._message(content, progress.completion_tokens),
            **self._end(progress),
            "moa": self._moa(progress),
        }

    def first(self) -> bytes:
        """Begins a stream."""
        message = {**self._message([], 0), "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        committed = progress.text.committed
        piece, self._sent = committed[self._sent :], len(committed)
        return self._text(piece)

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends a stream: with its unverified text, if that is how it ends."""
        events = self._text(progress.text.provisional)
        if self._parts is not None:
            events += b"".join([self._part(part, self._parts) for part in self._parts.finish()])
        events += self._close()
        usage = self._usage(progress.completion_tokens)
        events += _event("message_delta", delta=self._end(progress), usage=usage, moa=self._moa(progress))
        return events + _event("message_stop")

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        return event(error.anthropic_fields, "error")

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        return error.response(PATH)

    def _message(self, content: list[Fields], tokens: int) -> Fields:
        return {
            "id": f"msg_{self._header.identifier}",
            "type": "message",
            "role": "assistant",
            "model": self._header.model,
            "content": content,
            "usage": self._usage(tokens),
        }

    def _usage(self, tokens: int) -> Fields:
        """How many tokens there were; none is told apart as cached."""
        return {
            "input_tokens": self._header.prompt_tokens,
            "output_tokens": tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }

    def _end(self, progress: AnswerProgress) -> Fields:
        """Why the answer has ended."""
        reason = progress.reason or ""
        if self._parts is not None:
            reason = self._parts.reason(reason)
        ended, stop = REASONS[reason], progress.stop
        if ended == "end_turn" and progress.finish is Finish.STOP:
            ended = "stop_sequence"
        elif ended == "max_tokens" and progress.finish is Finish.CONTEXT:
            ended = "model_context_window_exceeded"
        return {"stop_reason": ended, "stop_sequence": stop if ended == "stop_sequence" else None}

    def _moa(self, progress: AnswerProgress) -> Fields:
        return {"seed": self._header.seed, "verified": progress.is_verified}

    # ------------------------------------------------------------ whole

    def _add(self, content: list[Fields], part: Part, whole: AnswerParts) -> None:
        """Adds a part to the blocks of a message."""
        match part:
            case TextPiece(text) if content and content[-1]["type"] == "text":
                content[-1]["text"] += text
            case TextPiece(text):
                content.append({"type": "text", "text": text})
            case ReasoningPiece(text) if content and content[-1]["type"] == "thinking":
                content[-1]["thinking"] += text
            case ReasoningPiece(text) if self._shows_thinking:
                content.append({"type": "thinking", "thinking": text, "signature": ""})
            case CallStarted(index):
                call = whole.calls[index]
                content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.values})

    # ------------------------------------------------------------ streamed

    def _text(self, text: str) -> bytes:
        if not text:
            return b""
        if self._parts is None:
            return self._part(TextPiece(text), None)
        return b"".join([self._part(part, self._parts) for part in self._parts.push(text)])

    def _part(self, part: Part, whole: AnswerParts | None) -> bytes:
        match part:
            case TextPiece(text):
                return self._begin("text", text="") + self._delta("text_delta", text=text)
            case ReasoningPiece(text) if self._shows_thinking:
                block = self._begin("thinking", thinking="", signature="")
                return block + self._delta("thinking_delta", thinking=text)
            case CallStarted(index, name) if whole is not None:
                return self._close() + self._begin("tool_use", id=whole.calls[index].id, name=name, input={})
            case CallArguments(_, text):
                return self._delta("input_json_delta", partial_json=text)
            case CallEnded():
                return self._close()
        return b""

    def _begin(self, kind: str, **fields: Any) -> bytes:
        """Begins a block, unless one of its type is open."""
        if self._open == kind:
            return b""
        closing = self._close()
        self._open = kind
        self._blocks += 1
        block = {"type": kind, **fields}
        return closing + _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta={"type": kind, **fields})

    def _close(self) -> bytes:
        """Ends the block that is open, if one is."""
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", index=self._blocks - 1)


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
