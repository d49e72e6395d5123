"""An answer to which tools were offered: its text, reasoning and calls as OpenAI's objects have them. Pure.

State of one answer: what was read of it so far. Invariant: the deltas of a stream add up to the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moa_client.endpoint.tool_fields import ToolOffer
from moa_client.tools.answer_reader import AnswerReader
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.ids import call_id
from moa_client.tools.reading.pieces import CallArguments, CallBroken, CallStarted, Piece, TextPiece
from moa_client.tools.thinking import ReasoningPiece, Thinking, ThinkingReader

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerMarkup:
    """How a model marks the parts of one answer.

    Args:
        form: of calls.
        offer: the tools that it may call.
        thinking: marks reasoning; None: none is known.
        is_thinking: the prompt has opened reasoning.
    """

    form: ToolFormat
    offer: ToolOffer
    thinking: Thinking | None
    is_thinking: bool

    def has_any(self, special_tokens: Mapping[str, int]) -> bool:
        """Whether some of these tokens, which readers are not shown otherwise, are marks."""
        form, thinking = self.form, self.thinking
        marks = [*form.openings, *form.likely_openings, *form.first_openings, form.closing]
        if thinking is not None:
            marks += [*thinking.openings, *thinking.closings]
        return any(token in mark for token in special_tokens for mark in marks)

    def reader(self) -> AnswerReader:
        """A reader of the answer."""
        thinking = None if self.thinking is None else ThinkingReader(self.thinking, is_open=self.is_thinking)
        return AnswerReader(thinking, self.form.reader(self.offer.tools))


class ToolAnswer:
    """The parts of one answer.

    Args:
        identifier: of the answer: the ids of its calls depend on it.
    """

    def __init__(self, markup: AnswerMarkup, identifier: str) -> None:
        self._reader = markup.reader()
        self._most_calls = None if markup.offer.is_parallel else 1
        self._identifier = identifier
        self._content = ""
        self._reasoning = ""
        self._calls: list[Fields] = []
        self._is_broken = False

    def push(self, text: str) -> list[Fields]:
        """Reads more text; the deltas of what has become certain."""
        return self._deltas(self._reader.push(text))

    def finish(self) -> list[Fields]:
        """Ends the text; the deltas of the rest."""
        return self._deltas(self._reader.finish())

    def message(self) -> Fields:
        """The whole answer."""
        message: Fields = {"role": "assistant", "content": self._content or None, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    def reason(self, reason: str) -> str:
        """Why it has ended.

        Args:
            reason: why its text has.
        """
        if self._is_broken:
            return "length"
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _deltas(self, pieces: list[ReasoningPiece | Piece]) -> list[Fields]:
        return [delta for piece in pieces if (delta := self._delta(piece))]

    def _delta(self, piece: ReasoningPiece | Piece) -> Fields:
        """What a piece adds; empty: nothing."""
        match piece:
            case ReasoningPiece(text):
                self._reasoning += text
                return {"reasoning_content": text}
            case TextPiece(text):
                self._content += text
                return {"content": text}
            case CallBroken(index, text):
                self._is_broken = True
                if index < len(self._calls) or self._is_one_too_many(index):
                    return {}  # its arguments are given as far as they came
                self._content += text
                return {"content": text}
            case CallStarted(index, name) if not self._is_one_too_many(index):
                call = {"id": call_id(self._identifier, index), "type": "function"}
                self._calls.append({**call, "function": {"name": name, "arguments": ""}})
                return {"tool_calls": [{"index": index, **call, "function": {"name": name, "arguments": ""}}]}
            case CallArguments(index, text) if not self._is_one_too_many(index):
                self._calls[index]["function"]["arguments"] += text
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return {}

    def _is_one_too_many(self, index: int) -> bool:
        return self._most_calls is not None and index >= self._most_calls
